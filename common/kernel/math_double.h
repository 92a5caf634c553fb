// The functions of math.h in double precision, for the oracle. The oracle compiles the text of a function with `double`
// in place of `float`.
#ifdef __CUDACC__

#define INFINITY __longlong_as_double(0x7ff0000000000000)
// The casts are for literals, which stay float: the toolkit's functions have no overload for one double and one float.
// The text may have functions with the toolkit's names.
#define fabsf(x) ::fabs(static_cast<double>(x))
#define fminf(x, y) ::fmin(static_cast<double>(x), static_cast<double>(y))
#define fmaxf(x, y) ::fmax(static_cast<double>(x), static_cast<double>(y))
#define sqrtf(x) ::sqrt(static_cast<double>(x))
#define logf(x) ::log(static_cast<double>(x))
#define exp2f(x) ::exp2(static_cast<double>(x))
#define expf(x) ::exp(static_cast<double>(x))
#define tanhf(x) ::tanh(static_cast<double>(x))

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
