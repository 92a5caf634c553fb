// The functions of math.h in double precision, for the oracle: it takes the same text with `double` for `float`.
#ifdef __CUDACC__

#define INFINITY __longlong_as_double(0x7ff0000000000000)
#define fabsf fabs
#define fminf fmin
#define fmaxf fmax
#define sqrtf sqrt
#define logf log
#define exp2f exp2
#define expf exp
#define tanhf tanh

#else

#define INFINITY __builtin_inf()
#define fabsf __builtin_fabs
#define fminf __builtin_fmin
#define fmaxf __builtin_fmax
#define sqrtf __builtin_sqrt
#define logf __builtin_log
#define exp2f __builtin_exp2
#define expf __builtin_exp
#define tanhf __builtin_tanh

#endif
#define float double
