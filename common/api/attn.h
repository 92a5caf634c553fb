/* attn.h: the project's attention kernels for programs in any language, on tensors as DLPack describes them.
 *
 *   attn_engine* engine;
 *   if (attn_open("cpu", NULL, &engine) != ATTN_OK) fprintf(stderr, "%s\n", attn_message());
 *   attn_flash(engine, NULL, &q, &k, &v, &o, NULL);
 *   attn_close(engine);
 *
 * Every function that returns a status leaves a line in attn_message() where it is not ATTN_OK. All are safe to call
 * from several threads; a message is the thread's own. No call copies a tensor, or keeps a pointer behind its return,
 * but for what the GPU still has to do: there a call returns when the kernel is on `stream`, a cudaStream_t of the
 * tensors' device, whose null is the default stream. On the cpu `stream` is NULL, and a call returns when all is
 * written.
 *
 * A tensor is four-dimensional where nothing else is said: [batch, heads, tokens, width], or [batch, tokens, heads,
 * width] with layout ATTN_BSHD. Strides are as DLPack has them, in elements, NULL for a dense tensor; that of width
 * is 1. On a GPU addresses and strides are multiples of 16 bytes. Element types: float 32, float 16 and bfloat 16. A
 * pointer to a tensor that may be NULL says so.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifndef DLPACK_DLPACK_H_ /* that of dlpack.h; who includes that too includes it first */
/* The part of DLPack's interface that stays the same in all versions (https://dmlc.github.io/dlpack). */
typedef struct {
  int32_t device_type; /* 1: cpu, 2: CUDA */
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code; /* 0: int, 1: unsigned, 2: float, 4: bfloat, 10: float8 e4m3fn */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Rises where a program that was compiled with an older header would not work any more. Structs of options begin with
 * their size, so that they may grow without that. */
#define ATTN_ABI_VERSION 1
#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

typedef enum {
  ATTN_OK = 0,
  ATTN_BAD_INPUT = 1,     /* arguments that cannot be; the message says what is allowed */
  ATTN_NO_DEVICE = 2,     /* the device, or a library it needs, is not there */
  ATTN_NOT_COMPILED = 3,  /* a kernel does not compile or load */
  ATTN_OUT_OF_MEMORY = 4, /* of the device */
  ATTN_DEVICE_LOST = 5,   /* a kernel faulted or hung; only a new process has use of the device */
  ATTN_FAILED = 6         /* anything else: a bug, or a call while the stream is captured that cannot be captured */
} attn_status;

typedef enum { ATTN_BHSD = 0, ATTN_BSHD = 1 } attn_layout;

typedef struct attn_engine attn_engine; /* kernels of one device, and what is ready of them */

typedef struct {
  size_t struct_bytes; /* sizeof(attn_open_options) */
  /* Of compiled kernels; NULL: $ATTENTION_PROTO_CACHE, or ~/.cache/attention-proto. The library writes nothing to the
   * terminal: warnings of compilers go to the file log.txt in the folder of the process's first engine. */
  const char* cache_folder;
  const char* archive; /* a file of compiled kernels (attn_save_archive); NULL: none */
} attn_open_options;

/* ATTN_ABI_VERSION of the library. */
ATTN_API int attn_abi_version(void);
/* What went wrong in the calling thread's last call that failed; valid until its next call. Never NULL. */
ATTN_API const char* attn_message(void);
/* 1 where the library has the backend, "cpu" or "cuda", else 0. The machine may lack it all the same. */
ATTN_API int attn_has_backend(const char* backend);
/* device: "cpu", "cpu:threads=N" or "cuda:N". options may be NULL. Kernels are read from the folder that
 * $ATTENTION_PROTO_SOURCE names, else from where the library was built. */
ATTN_API attn_status attn_open(const char* device, const attn_open_options* options, attn_engine** engine);
/* No call of the engine may be under way; on a GPU, no kernel. NULL is allowed. */
ATTN_API void attn_close(attn_engine* engine);
/* Writes all kernels that the engine has loaded into one file, to be shipped: an engine that opens it compiles none of
 * them. It serves the same compiler version and the same kind of device. */
ATTN_API attn_status attn_save_archive(attn_engine* engine, const char* path);
/* Launches that are ready, as a number of configurations. */
ATTN_API size_t attn_prepared(attn_engine* engine);
/* A kernel that does nothing: what a call costs. */
ATTN_API attn_status attn_empty(attn_engine* engine, void* stream);

/* softmax(scale Q K^T) V, with modifiers. Numbers as ATTN_FLASH_OPTIONS has them are off. Tables are dense, on the
 * tensors' device, and NULL where there is none; the kernel reads them when it runs. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_flash_options) */
  attn_layout layout;
  int causal;                   /* 1: a query sees the keys up to its own; the last query stands at the last key */
  double scale;                 /* 0: 1 / sqrt(width) */
  int64_t soft_cap;             /* cap tanh(score / cap), a whole number */
  int64_t window_left;          /* keys before its own that a query sees; -1: all */
  int64_t window_right;         /* keys behind its own; -1: all */
  int64_t prefix;               /* keys that every query sees beside the causal ones */
  int64_t global_tokens;        /* with a window: first tokens that see all and that all see */
  int alibi;                    /* 1: a penalty by distance */
  const DLTensor* alibi_slopes; /* float32 [q_heads]; NULL: 2^(-8 i / q_heads) */
  const DLTensor* sinks;        /* float32 [q_heads]: a logit for each head in the denominator */
  const DLTensor* lengths;      /* int32 [batch]: keys of each sequence */
  const DLTensor* documents;    /* int32 [kv_len, 2]: first and last key, plus one, of each key's document */
  const DLTensor* blocks;       /* int32 or unsigned [blocks of queries, words]: a bit for each block of 128 keys */
  const DLTensor* bias;         /* float32, four dimensions, each 1 or whole; keys up to a multiple of 4, or 1 */
  const DLTensor* lse;          /* float32 [batch, q_heads, q_len], written: natural log of the softmax's denominator */
} attn_flash_options;
#define ATTN_FLASH_OPTIONS \
  {sizeof(attn_flash_options), ATTN_BHSD, 0, 0, 0, -1, -1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* q, o: q_heads; k, v: kv_heads, which divide them. o is of q's type or float32. options may be NULL. */
ATTN_API attn_status attn_flash(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* o, const attn_flash_options* options);

/* Attention over a cache. q, o: [batch, q_heads, q_len, width] in `layout`. Query i stands at key length - q_len + i.
 */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_cache_options) */
  attn_layout layout;  /* of q, o, new_k and new_v */
  attn_layout cache_layout;
  double scale;             /* 0: 1 / sqrt(width) */
  const DLTensor* lengths;  /* int32 [batch]: tokens of each sequence, its queries' own among them */
  const DLTensor* table;    /* int32 [batch, max_pages]; NULL: the cache is contiguous */
  const DLTensor* k_scales; /* float32 [pages or batch, kv_heads], of a cache of 8 bits; else NULL */
  const DLTensor* v_scales;
  /* Tokens that the call appends, of q_len; NULL: they are in the cache. With cosines and sines, float32 [positions,
   * width / 2 at most], the call turns queries and new keys by their positions (RoPE). */
  const DLTensor* new_k;
  const DLTensor* new_v;
  const DLTensor* cosines;
  const DLTensor* sines;
  int interleaved;     /* 1: elements 2i and 2i + 1 are a pair; 0: i and i + half */
  const DLTensor* lse; /* as attn_flash_options has it */
} attn_cache_options;
#define ATTN_CACHE_OPTIONS \
  {sizeof(attn_cache_options), ATTN_BHSD, ATTN_BHSD, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL}

/* k, v: [batch, kv_heads, capacity, width], or with a table [pages, kv_heads, page_size, width]; the order of heads and
 * tokens is cache_layout's. attn_decode is for up to 16 queries a sequence, attn_prefill for more. Caches of 8 bits,
 * int 8 and float8 e4m3, are for attn_decode. */
ATTN_API attn_status attn_decode(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                 const DLTensor* v, const DLTensor* o, const attn_cache_options* options);
ATTN_API attn_status attn_prefill(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                  const DLTensor* v, const DLTensor* o, const attn_cache_options* options);

/* What attn_decode and attn_prefill ask of the values of lengths and table, which options has beside the layout of the
 * cache k: every length fits the cache, and every page that holds a token is one of k's. On the cpu they ask it
 * themselves, with each call. On a GPU the values stand where the host cannot look, and this waits for the stream,
 * which must not be captured. The first value that is wrong is ATTN_BAD_INPUT, and the message names it. */
ATTN_API attn_status attn_check_cache(attn_engine* engine, void* stream, const DLTensor* k,
                                      const attn_cache_options* options);

/* Linear attention: S_t = decay_t S_{t-1} + f(k_t) v_t^T, o_t = scale f(q_t)^T S_t. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_linear_options) */
  attn_layout layout;
  int causal;          /* 0: every query reads the last state */
  int normalised;      /* 1: o_t is divided by f(q_t)^T z_t */
  const char* feature; /* f: NULL or "identity", "elu1", "relu" */
  double scale;        /* 0: 1 / sqrt(width), or 1 where normalised */
  const DLTensor*
      gate; /* float32, logarithms of decays: [heads], [batch, heads, tokens] or [batch, heads, tokens, width] */
  const DLTensor* initial_state; /* float32 [batch, heads, width, value width]; NULL: zeros */
  const DLTensor* final_state;   /* the same, written; NULL: unwanted */
} attn_linear_options;
#define ATTN_LINEAR_OPTIONS {sizeof(attn_linear_options), ATTN_BHSD, 1, 0, NULL, 0, NULL, NULL, NULL}

/* q, k: [batch, heads, tokens, width]; v, o: [batch, heads, tokens, value width]. options may be NULL. */
ATTN_API attn_status attn_linear(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                 const DLTensor* v, const DLTensor* o, const attn_linear_options* options);

/* Rotary position embedding. */
typedef enum {
  ATTN_ROPE_PLAIN = 0,
  ATTN_ROPE_LINEAR,
  ATTN_ROPE_NTK,
  ATTN_ROPE_YARN,
  ATTN_ROPE_LLAMA3
} attn_rope_scaling;
typedef struct {
  size_t struct_bytes; /* sizeof(attn_rope_options) */
  attn_layout layout;
  int64_t rotary_dim; /* elements of a row that turn; 0: all */
  int interleaved;    /* as attn_cache_options has it */
  double theta;
  attn_rope_scaling scaling;
  double factor, original_length; /* of a scaling */
  const DLTensor* offsets;        /* int32 [batch]: positions of first tokens; NULL: zeros */
} attn_rope_options;
#define ATTN_ROPE_OPTIONS {sizeof(attn_rope_options), ATTN_BHSD, 0, 0, 10000, ATTN_ROPE_PLAIN, 1, 8192, NULL}

/* Turns q into q_out and k into k_out, which may be q and k. k and k_out may be NULL. options may be NULL. */
ATTN_API attn_status attn_rope(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                               const DLTensor* q_out, const DLTensor* k_out, const attn_rope_options* options);

#ifdef __cplusplus
}
#endif
#endif
