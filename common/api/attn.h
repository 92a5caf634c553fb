/* attn.h: the project's attention kernels for programs in any language, on tensors as DLPack describes them.
 *
 *   attn_engine* engine;
 *   if (attn_open("cpu", NULL, &engine) != ATTN_OK) fprintf(stderr, "%s\n", attn_message());
 *   attn_flash(engine, NULL, &q, &k, &v, &o, NULL);
 *   attn_close(engine);
 *
 * Every function that returns a status leaves a line in attn_message() where it is not ATTN_OK. All but attn_close are
 * safe to call from several threads; a message is the thread's own. No call copies a tensor of four dimensions but the
 * bias, or keeps a pointer after its return, but for what the GPU still has to do: there a call returns when the kernel
 * is on `stream`, a cudaStream_t of the tensors' device, whose null is the default stream. On the cpu `stream` is NULL,
 * and a call returns when all is written.
 *
 * A tensor is four-dimensional where nothing else is said: [batch, heads, tokens, width], or [batch, tokens, heads,
 * width] with layout ATTN_BSHD. Strides are as DLPack has them, in elements, NULL for a dense tensor; that of width
 * is 1. On a GPU addresses and strides are multiples of 16 bytes. Element types: float 32, float 16 and bfloat 16. A
 * pointer to a tensor that may be NULL says so.
 *
 * Sizes: batch and heads up to 65535, tokens up to 2^30, widths that are multiples of 8 (attention on a GPU up to 256,
 * linear attention up to 256, RoPE up to 512), fewer than 2^31 rows in all. Sizes of 0 but for widths are allowed. What
 * is written lies apart from all else that the call has, and no two of its rows overlap; where it may be an input, that
 * is said. Scales are 0 or of a size from 2^-126 to 2^127.
 *
 * What a call may not have is ATTN_BAD_INPUT, before anything is read or written. On the cpu the values of tables that
 * say where something lies (lengths, table, documents, offsets) are looked at too. On a GPU they are not: there
 * attn_check_cache looks at those of a cache.
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
 * their size, so that they may grow at their end without that: what an older program does not have is off. What a newer
 * program has and the library does not know is ATTN_BAD_INPUT. */
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
 * $ATTENTION_PROTO_SOURCE names, else from share/attn of where the library is installed, else from the tree that it was
 * built from. */
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

/* The project's scripts/tools/options writes the fields of the structs of options below, from its list of options. */

/* softmax(scale Q K^T) V, with modifiers. Numbers as ATTN_FLASH_OPTIONS has them are off. A query's own key is that of
 * its position: the last query stands at the last key, whatever `lengths` says. A query sees the keys that all options
 * let it see; one that sees none has zeros, and -infinity as lse, or its sink. Limits that reach beyond the sequence,
 * such as INT64_MAX, are none.
 *
 * Tables are dense, on the tensors' device, and NULL where there is none. They are copied in the order of the stream,
 * before the kernel runs: a bias takes memory of its own size, once for each stream and shape that is in use. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_flash_options) */
  attn_layout layout;
  /* 1: a query sees the keys up to its own */
  int causal;
  /* 0: 1 / sqrt(width) */
  double scale;
  /* cap tanh(score / cap), a cap from 0.001 to 1000; 0: none. It was a whole number of 64 bits: programs that were
   * compiled so go on working, since its bits are those of a double below 2^-1022 */
  double soft_cap;
  /* keys before its own that a query sees; -1: all */
  int64_t window_left;
  /* keys after its own; -1: all */
  int64_t window_right;
  /* with causal: first keys that every query sees too */
  int64_t prefix;
  /* with a window: first tokens that see all and that all see */
  int64_t global_tokens;
  /* 1: minus slope times (own key's number - key's number) is added to a score */
  int alibi;
  /* float32 [q_heads]; NULL: for head i from 1 on 2^(-8 i / q_heads) where q_heads is a power of two, else the slopes
   * of the next smaller power, then every second of the next larger one (Press et al. 2022) */
  const DLTensor* alibi_slopes;
  /* float32 [q_heads]: a logit for each head in the denominator */
  const DLTensor* sinks;
  /* int32 [batch], from 0 to kv_len: keys of each sequence; those after them are padding */
  const DLTensor* lengths;
  /* int32 [kv_len, 2]: first and last key, plus one, of each key's document. A query sees that of its own key. Both
   * numbers never decrease from a key to the next */
  const DLTensor* documents;
  /* int32 or unsigned [kv_len / 128, kv_len / 4096], both rounded up: for each block of 128 positions of queries, which
   * are those of their own keys, a bit for each block of 128 keys, the lowest of a word first */
  const DLTensor* blocks;
  /* float32 [batch, q_heads, q_len, kv_len rounded up to a multiple of 4], each of them or 1, added to the scores;
   * -infinity hides a key, whatever that holds. What stands after kv_len is not used */
  const DLTensor* bias;
  /* float32 [batch, q_heads, q_len], written: natural log of the softmax's denominator */
  const DLTensor* lse;
} attn_flash_options;
#define ATTN_FLASH_OPTIONS \
  {sizeof(attn_flash_options), ATTN_BHSD, 0, 0, 0, -1, -1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* q, o: q_heads; k, v: kv_heads, which divide them. o is of q's type or float32. options may be NULL. */
ATTN_API attn_status attn_flash(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* o, const attn_flash_options* options);

/* Attention over a cache. q, o: [batch, q_heads, q_len, width] in `layout`. Query i stands at key length - q_len + i,
 * and sees the keys up to its own; where that is negative it sees none. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_cache_options) */
  /* of q, o, new_k and new_v */
  attn_layout layout;
  attn_layout cache_layout;
  /* 0: 1 / sqrt(width) */
  double scale;
  /* int32 [batch]: tokens of each sequence, its queries' own among them, from 0 to capacity */
  const DLTensor* lengths;
  /* int32 [batch, max_pages]: pages of each sequence; those after its last token may be anything. NULL: the cache is
   * contiguous */
  const DLTensor* table;
  /* float32 [pages or batch, kv_heads], of a cache of 8 bits; else NULL */
  const DLTensor* k_scales;
  const DLTensor* v_scales;
  /* Tokens that the call appends, of q_len, of the cache's type, which is q's; NULL: they are in the cache. Token i
   * becomes key length - q_len + i; where that is negative it is left out. No page takes tokens of two entries of the
   * table; the cpu looks. */
  const DLTensor* new_k;
  const DLTensor* new_v;
  /* Queries and new keys turn by their positions (RoPE): float32 [positions, half of the elements that turn], with as
   * many positions as a sequence may have tokens; attn_decode turns an even number, attn_prefill a multiple of 8. NULL:
   * nothing turns. */
  const DLTensor* cosines;
  const DLTensor* sines;
  /* 1: elements 2i and 2i + 1 are a pair; 0: i and i + half */
  int interleaved;
  /* as attn_flash_options has it */
  const DLTensor* lse;
} attn_cache_options;
#define ATTN_CACHE_OPTIONS \
  {sizeof(attn_cache_options), ATTN_BHSD, ATTN_BHSD, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL}

/* k, v: [batch, kv_heads, capacity, width], or with a table [pages, kv_heads, page_size, width], whose capacity is
 * max_pages * page_size; up to 2^30 tokens a sequence, and 2^31 - 1 pages. The order of heads and tokens is
 * cache_layout's. attn_decode is for up to 16 queries a sequence, attn_prefill for more. Caches of 8 bits, int 8 and
 * float8 e4m3, are for attn_decode, and nothing is appended to them. */
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
  /* 0: every query reads the last state */
  int causal;
  /* 1: o_t = f(q_t)^T S_t / (f(q_t)^T z_t), where z_t = decay_t z_{t-1} + f(k_t) */
  int normalised;
  /* f, of each element: NULL or "identity", "elu1", "relu" */
  const char* feature;
  /* 0: 1 / sqrt(width); with normalised there is none */
  double scale;
  /* With causal, float32, logarithms of decays: [heads], [batch, heads, tokens], or for each row of S [batch, heads,
   * tokens, width]; NULL: nothing decays */
  const DLTensor* gate;
  /* float32 [batch, heads, width, value width]; NULL: zeros, as normalised wants */
  const DLTensor* initial_state;
  /* the same, written, and may be initial_state; NULL: unwanted */
  const DLTensor* final_state;
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
  /* elements of a row that turn, an even number; 0: all */
  int64_t rotary_dim;
  /* as attn_cache_options has it */
  int interleaved;
  /* above 1 */
  double theta;
  attn_rope_scaling scaling;
  /* of a scaling, from 1 */
  double factor;
  /* of YaRN and Llama 3: tokens of the training's sequences */
  double original_length;
  /* int32 [batch]: positions of first tokens, which may be negative; no token stands beyond 2^31 - 1. NULL: zeros */
  const DLTensor* offsets;
  /* of YaRN: what the turned elements are multiplied with; 0: 0.1 ln(factor) + 1, or with mscale and mscale_all_dim,
   * where neither is 0, (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1) */
  double attention_factor;
  double mscale;
  double mscale_all_dim;
  /* of YaRN: pairs that turn more than beta_fast times in original_length keep their frequency, those that turn less
   * than beta_slow times have it over factor; between them is a ramp over pairs */
  double beta_fast;
  double beta_slow;
  /* of YaRN, 1: the ramp begins and ends at whole pairs */
  int truncate;
  /* of Llama 3: as beta_slow and beta_fast; the ramp is over turns */
  double low_freq_factor;
  double high_freq_factor;
} attn_rope_options;
#define ATTN_ROPE_OPTIONS \
  {sizeof(attn_rope_options), ATTN_BHSD, 0, 0, 10000, ATTN_ROPE_PLAIN, 1, 8192, NULL, 0, 0, 0, 32, 1, 1, 1, 4}

/* Turns q into q_out and k into k_out, which may be q and k, with the same strides. k and k_out may both be NULL.
 * options may be NULL. */
ATTN_API attn_status attn_rope(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                               const DLTensor* q_out, const DLTensor* k_out, const attn_rope_options* options);

#ifdef __cplusplus
}
#endif
#endif
