/* attn.h: the project's attention kernels for programs in any language. Tensors are described as in DLPack.
 *
 *   attn_engine* engine;
 *   if (attn_open("cpu", NULL, &engine) != ATTN_OK) fprintf(stderr, "%s\n", attn_message());
 *   attn_flash(engine, NULL, &q, &k, &v, &o, NULL);
 *   attn_close(engine);
 *
 * Every function that returns a status leaves a line in attn_message() if the status is not ATTN_OK. Each thread has
 * its own message. All functions except attn_close are safe to call from several threads. No call copies a tensor of
 * four dimensions, except a bias and, in attn_prefill, a cache of 8 bits. On the cpu `stream` is NULL, and a call
 * returns when all outputs are written. On a GPU a call returns when the kernel is on `stream`, a cudaStream_t of the
 * tensors' device; NULL is the default stream. A call keeps no pointer after its return, except for the work that the
 * GPU still has to do. On Metal `stream` is NULL too, and a call returns when all outputs are written; other work that
 * writes the tensors must have completed before the call.
 *
 * A tensor is four-dimensional unless a comment says otherwise: [batch, heads, tokens, width], or [batch, tokens,
 * heads, width] with layout ATTN_BSHD. Strides are in elements, as in DLPack, and NULL for a dense tensor; the stride
 * along width is 1. On a GPU addresses and strides are multiples of 16 bytes; the address of a tensor with other axes,
 * such as a table, is a multiple of its element's size. Element types: float 32, float 16 and bfloat 16. An element or
 * an intermediate result with a magnitude below 2^-126 may count as 0. A tensor may be NULL only where a comment says
 * so.
 *
 * Sizes: batch and heads up to 65535, tokens up to 2^30, widths that are multiples of 8 (attention on a GPU up to 256,
 * linear attention up to 256, RoPE up to 512), fewer than 2^31 rows of q (batch * heads * tokens). Every size except a
 * width may be 0. The memory of an output overlaps no other memory of the call, and no two rows of an output overlap.
 * If an output may be an input, a comment says so. The magnitude of a scale is 0, or from 2^-126 to 2^127.
 *
 * A call with arguments that are not allowed returns ATTN_BAD_INPUT before it reads or writes a tensor. On the cpu the
 * library also checks the values of tables that hold positions or page numbers (lengths, starts, cu_seqlens_q,
 * cu_seqlens_k, table, documents, offsets). On a GPU it does not check these values; a program can check the tables of
 * a cache with attn_check_cache. attn_why_not says without a call whether a call is allowed.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifndef DLPACK_DLPACK_H_ /* dlpack.h defines this; a program that includes both headers includes dlpack.h first */
/* The part of DLPack's interface that stays the same in all versions (https://dmlc.github.io/dlpack). */
typedef struct {
  int32_t device_type; /* 1: cpu, 2: CUDA, 8: Metal */
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code; /* 0: int, 1: unsigned, 2: float, 4: bfloat, 10: float8 e4m3fn */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void* data; /* on Metal an id<MTLBuffer> of the default GPU */
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

/* This number rises when programs that were compiled with an older header stop working. Structs of options begin with
 * their size. So a struct may grow at its end without a new number: the options that an older program's struct lacks
 * are off. A call with a longer struct than the library's, from a newer program, returns ATTN_BAD_INPUT. */
#define ATTN_ABI_VERSION 1
#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

typedef enum {
  ATTN_OK = 0,
  ATTN_BAD_INPUT = 1,     /* arguments are not allowed; the message says what is allowed */
  ATTN_NO_DEVICE = 2,     /* the device, or a library that the device needs, is missing */
  ATTN_NOT_COMPILED = 3,  /* a kernel does not compile or load */
  ATTN_OUT_OF_MEMORY = 4, /* the device or the host has too little memory */
  ATTN_DEVICE_LOST = 5,   /* a kernel faulted or hung; only a new process can use the device */
  ATTN_FAILED = 6         /* any other error: a bug, or the stream is captured and the call cannot be captured */
} attn_status;

typedef enum { ATTN_BHSD = 0, ATTN_BSHD = 1 } attn_layout;

typedef struct attn_engine attn_engine; /* one device, its compiled kernels, and its prepared launches */

typedef struct {
  size_t struct_bytes; /* sizeof(attn_open_options) */
  /* The folder of compiled kernels; NULL: $ATTENTION_PROTO_CACHE, or ~/.cache/attention-proto. The library writes
   * nothing to the terminal. Warnings of compilers go to the file log.txt in the cache folder of the process's first
   * engine. */
  const char* cache_folder;
  const char* archive; /* a file of compiled kernels (attn_save_archive); NULL: none */
  /* Runs the work of an engine of the cpu on the program's threads: calls piece(work, number) once for each number from
   * 0 to pieces - 1, on any threads, one after another or at the same time, and returns when all calls have returned.
   * There are at most as many pieces as the engine has threads (cpu:threads=N). Several threads may call run_pieces at
   * the same time. In the child process of a fork the engine does not call run_pieces. NULL: the engine has threads of
   * its own, which spin while a call runs. */
  void (*run_pieces)(void* run_context, size_t pieces, void (*piece)(void* work, size_t number), void* work);
  void* run_context;
} attn_open_options;

/* The ATTN_ABI_VERSION that the library was compiled with. */
ATTN_API int attn_abi_version(void);
/* The error of the calling thread's last call that failed; valid until the thread's next call. Never NULL. */
ATTN_API const char* attn_message(void);
/* 1 if the library was built with the backend, "cpu", "cuda" or "metal", else 0. The machine may still lack the device.
 */
ATTN_API int attn_has_backend(const char* backend);
/* device: "cpu", "cpu:threads=N", "cuda:N" or "metal". options may be NULL. The engine reads the sources of kernels
 * from the folder that $ATTENTION_PROTO_SOURCE names, else from share/attn of the installation, else from the source
 * tree of the build. */
ATTN_API attn_status attn_open(const char* device, const attn_open_options* options, attn_engine** engine);
/* Ends the engine. No other call may use the engine at this time, and no kernel of the engine may still run on a GPU.
 * engine may be NULL. */
ATTN_API void attn_close(attn_engine* engine);
/* Writes all kernels that the engine has loaded into one file that a program can ship. An engine that opens the file
 * compiles none of these kernels. The file is valid only for the kind of device and the version of the compiler with
 * which its kernels were compiled. */
ATTN_API attn_status attn_save_archive(attn_engine* engine, const char* path);
/* The number of prepared launches that the engine holds, each for the calls of one configuration. */
ATTN_API size_t attn_prepared(attn_engine* engine);
/* The number of calls of attn_flash, attn_decode and attn_prefill whose work the engine has put on streams. A call
 * without rows has no work. A replay of a CUDA graph launches without the engine, so the replay does not count. */
ATTN_API uint64_t attn_launches(attn_engine* engine);
/* Runs a kernel that does nothing. The time that this takes is the cost of a call without the work of a kernel. */
ATTN_API attn_status attn_empty(attn_engine* engine, void* stream);

/* The project's scripts/tools/options writes the fields of the structs of options below, from the list
 * common/attention/options.def. */

/* softmax(scale Q K^T) V, with modifiers. ATTN_FLASH_OPTIONS turns all options off. A query's own key is the key at its
 * position: the last query stands at the last key of K, even if `lengths` is smaller. A query sees the keys that all
 * options let it see. If a query sees no key, its output is zeros, and its lse is its head's sink, or -infinity without
 * sinks. Windows and prefixes may be larger than the sequence, up to INT64_MAX.
 *
 * Every option that is a tensor, except mask and lse, is a table. Tables are dense, and on the device of q; NULL means
 * no table. The call copies them in the order of the stream, before the kernel runs. So the engine holds a copy of a
 * bias for each stream and shape in use. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_flash_options) */
  attn_layout layout;
  /* 1: a query sees the keys up to its own */
  int causal;
  /* 0: 1 / sqrt(width) */
  double scale;
  /* cap tanh(score / cap), with a cap from 0.001 to 1000; 0: none */
  double soft_cap;
  /* how many keys before its own key a query sees; -1: all */
  int64_t window_left;
  /* how many keys after its own key a query sees; -1: all */
  int64_t window_right;
  /* with causal: how many first keys every query sees in addition */
  int64_t prefix;
  /* with a window: how many first tokens see all keys, and are seen by all queries, as far as causal allows */
  int64_t global_tokens;
  /* 1: slope times (own key's number - key's number) is subtracted from a score */
  int alibi;
  /* float32 [q_heads]. NULL: 2^(-8 i / q_heads) for head i, counted from 1, if q_heads is a power of two. Else the
   * first slopes are the slopes of the next smaller power of two, and the other slopes are every second slope of the
   * next larger power of two (Press et al. 2022) */
  const DLTensor* alibi_slopes;
  /* float32 [q_heads]: a logit for each head. Its exponential is added to the denominator of the head's softmaxes */
  const DLTensor* sinks;
  /* int32 [batch], from 0 to kv_len: how many keys each sequence has; later keys are padding */
  const DLTensor* lengths;
  /* int32 [kv_len, 2]: for each key, the number of the first key of its document, and the number of the last key plus
   * 1. A query sees only keys of its own key's document. Neither number decreases from a key to the next */
  const DLTensor* documents;
  /* int32 or unsigned [kv_len / 128, kv_len / 4096], both rounded up: for each block of 128 positions of queries, a bit
   * for each block of 128 keys, the lowest bit of a word first. If the bit is 0, these queries see none of these keys.
   * A query's position is the number of its own key */
  const DLTensor* blocks;
  /* float32 [batch, q_heads, q_len, kv_len rounded up to a multiple of 4], where each size may also be 1; added to the
   * scores. -infinity hides a key, even if the key holds NaN or infinity. Elements after kv_len are not used */
  const DLTensor* bias;
  /* float32 [batch, q_heads, q_len], written: natural log of the softmax's denominator */
  const DLTensor* lse;
  /* int32 [batch], from 0 to kv_len: the first key of each sequence; keys before it are padding, which no query sees.
   * Queries and keys keep their positions. With causal, queries before the first key see nothing */
  const DLTensor* starts;
  /* cu_seqlens_q and cu_seqlens_k are int32 [sequences + 1]; a call sets both or neither. With both, the batch is 1,
   * and its tokens belong to several sequences, one after the other. Sequence i has the queries [cu_seqlens_q[i],
   * cu_seqlens_q[i + 1]), and the keys between the same elements of cu_seqlens_k. The first element is 0, and no
   * element is less than the previous element. A query sees only keys of its sequence. The last query of a sequence
   * stands at the sequence's last key; prefix counts from the sequence's first key. Tokens after the last element
   * belong to no sequence. Not allowed with any of global_tokens, alibi, lengths, documents, blocks, bias, starts and
   * mask */
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_k;
  /* bool or uint8 [batch, q_heads, q_len, kv_len] with any strides, where each size may also be 1: a query sees a key
   * only if the byte of the pair is not 0. The device makes a bit of each byte, and leaves out blocks of keys that no
   * query of a tile sees */
  const DLTensor* mask;
} attn_flash_options;
#define ATTN_FLASH_OPTIONS     \
  {sizeof(attn_flash_options), \
   ATTN_BHSD,                  \
   0,                          \
   0,                          \
   0,                          \
   -1,                         \
   -1,                         \
   0,                          \
   0,                          \
   0,                          \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL}

/* q and o have q_heads; k and v have kv_heads, a divisor of q_heads. o has q's type or float32. options may be NULL. */
ATTN_API attn_status attn_flash(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* o, const attn_flash_options* options);

/* Attention over a cache. q, o: [batch, q_heads, q_len, width] in `layout`. Query i stands at key (length - q_len + i),
 * and sees the keys up to its own key. A query at a negative position sees no key. */
typedef struct {
  size_t struct_bytes; /* sizeof(attn_cache_options) */
  /* of q, o, new_k and new_v */
  attn_layout layout;
  attn_layout cache_layout;
  /* 0: 1 / sqrt(width) */
  double scale;
  /* int32 [batch], from 0 to capacity: how many tokens each sequence has, the tokens of its queries included */
  const DLTensor* lengths;
  /* int32 [batch, max_pages]: pages of each sequence; entries after the page of its last token may be anything. NULL:
   * the cache is contiguous */
  const DLTensor* table;
  /* float32 [pages or batch, kv_heads], of a cache of 8 bits; else NULL */
  const DLTensor* k_scales;
  const DLTensor* v_scales;
  /* The q_len tokens that the call appends, in the type of q; NULL: the cache has them already. Token i becomes key
   * (length - q_len + i); if this number is negative, the token is left out. Two entries of the table that get new
   * tokens must not name the same page, and no other sequence may see a slot that gets a token; the cpu checks this. */
  const DLTensor* new_k;
  const DLTensor* new_v;
  /* Queries and new keys are rotated by their positions (RoPE): float32 [positions, half of the elements that are
   * rotated], with at least as many positions as a sequence may have tokens. attn_decode rotates an even number of
   * elements of a row, attn_prefill a multiple of 8. NULL: nothing is rotated. */
  const DLTensor* cosines;
  const DLTensor* sines;
  /* 1: elements 2i and 2i + 1 are a pair; 0: elements i and i + n / 2, where n elements are rotated */
  int interleaved;
  /* as in attn_flash_options */
  const DLTensor* lse;
  /* The modifiers: as in attn_flash_options, for queries and keys at their positions in their sequence */
  double soft_cap;
  int64_t window_left;
  int alibi;
  const DLTensor* alibi_slopes;
  const DLTensor* sinks;
  /* int32 [batch], from 0 to capacity: the first key of each sequence; keys before it are padding */
  const DLTensor* starts;
  /* int64 [batch, q_len], for attn_decode with up to 64 new tokens: which new tokens each new token sees, as in a tree
   * of draft tokens. Bit i of a token's word, counted from the lowest bit, says whether the token sees new token i. The
   * token sees itself only if its own bit is set. All new tokens see the older keys. A token's position is still its
   * number, not its depth in the tree, so cosines and sines are not allowed with a tree */
  const DLTensor* tree;
} attn_cache_options;
#define ATTN_CACHE_OPTIONS     \
  {sizeof(attn_cache_options), \
   ATTN_BHSD,                  \
   ATTN_BHSD,                  \
   0,                          \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   0,                          \
   NULL,                       \
   0,                          \
   -1,                         \
   0,                          \
   NULL,                       \
   NULL,                       \
   NULL,                       \
   NULL}

/* k, v: [batch, kv_heads, capacity, width], or with a table [pages, kv_heads, page_size, width], where the capacity is
 * max_pages * page_size; fewer than 2^30 tokens a sequence, and up to 2^31 - 1 pages. cache_layout gives the order of
 * heads and tokens. attn_decode is for up to 16 queries a sequence (64 with a tree), attn_prefill for more.
 *
 * A cache has the type of q, or 8 bits: int8 or float8 e4m3. The value of an 8-bit element is the stored number times a
 * scale: element [page, head] of k_scales or v_scales, or [sequence, head] if the cache is contiguous. attn_prefill
 * first converts such a cache to a copy: an element of the copy is the value, rounded to q's type. The copy takes at
 * most 256 MiB on a GPU and 64 MiB on the cpu, but has room for at least one sequence of `capacity` tokens. If the
 * batch has more sequences than fit in the copy, the call serves a part of the batch at a time. The engine keeps the
 * copy's memory with the prepared launch.
 *
 * A call that appends tokens to a cache of 8 bits leaves all scales as they are. It stores each element, after the
 * rotation, divided by its scale and rounded to the nearest number of the type, ties to even. Magnitudes above the
 * type's largest number (127 or 448) become this number. NaN stays NaN in e4m3, and becomes 0 in int8. The scales of
 * pages that get tokens must be finite, and at least 2^-126; the cpu checks this. The call attends to the stored
 * tokens. It rounds rotated queries to their type. */
ATTN_API attn_status attn_decode(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                 const DLTensor* v, const DLTensor* o, const attn_cache_options* options);
ATTN_API attn_status attn_prefill(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                  const DLTensor* v, const DLTensor* o, const attn_cache_options* options);

/* Checks the values of lengths and table: every length fits the cache, and every page that holds a token is a page of
 * k. It reads lengths, table and cache_layout of the options. If the options have new_k, it also reads layout,
 * window_left and starts, and checks that no page gets tokens twice, and that no other sequence sees a slot that gets
 * a token. If they have k_scales and v_scales too, it checks the scales of pages that get tokens. On the cpu
 * attn_decode and attn_prefill check the values in each call. On a GPU they do not, because the values are in device
 * memory. There attn_check_cache waits for the stream, which must not be captured. attn_check_cache returns
 * ATTN_BAD_INPUT at the first wrong value, and the message names the value. */
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
  /* f, which is applied to each element: NULL or "identity", "elu1", "relu" */
  const char* feature;
  /* 0: 1 / sqrt(width); with normalised there is no scale */
  double scale;
  /* float32, only with causal: logarithms of the decays, [heads], [batch, heads, tokens], or, with a decay for each row
   * of S, [batch, heads, tokens, width]; NULL: nothing decays */
  const DLTensor* gate;
  /* float32 [batch, heads, width, value width]; NULL: zeros. With normalised only NULL is allowed */
  const DLTensor* initial_state;
  /* float32 [batch, heads, width, value width], written; may be initial_state; NULL: unwanted */
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
  /* how many elements of a row are rotated, an even number; 0: all */
  int64_t rotary_dim;
  /* as in attn_cache_options */
  int interleaved;
  /* the base of the frequencies, above 1 */
  double theta;
  attn_rope_scaling scaling;
  /* the factor of a scaling, at least 1 */
  double factor;
  /* of YaRN and Llama 3: how many tokens the sequences of the training had */
  double original_length;
  /* int32 [batch]: positions of first tokens, which may be negative; no token stands beyond 2^31 - 1. NULL: zeros */
  const DLTensor* offsets;
  /* of YaRN: a factor on the rotated elements; 0: 0.1 ln(factor) + 1 or, if neither mscale nor mscale_all_dim is 0,
   * (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1) */
  double attention_factor;
  double mscale;
  double mscale_all_dim;
  /* of YaRN: pairs that make more than beta_fast turns in original_length keep their frequency; the frequency of pairs
   * that make fewer than beta_slow turns is divided by factor; between these two groups is a ramp over pairs */
  double beta_fast;
  double beta_slow;
  /* of YaRN, 1: the ramp begins and ends at whole pairs */
  int truncate;
  /* of Llama 3: as beta_slow and beta_fast, but the ramp is over the number of turns */
  double low_freq_factor;
  double high_freq_factor;
} attn_rope_options;
#define ATTN_ROPE_OPTIONS \
  {sizeof(attn_rope_options), ATTN_BHSD, 0, 0, 10000, ATTN_ROPE_PLAIN, 1, 8192, NULL, 0, 0, 0, 32, 1, 1, 1, 4}

/* Rotates q and k by the positions of their tokens, and writes q_out and k_out. q_out may be q, and k_out may be k,
 * with the same strides. k and k_out may both be NULL. options may be NULL. */
ATTN_API attn_status attn_rope(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                               const DLTensor* q_out, const DLTensor* k_out, const attn_rope_options* options);

typedef enum { ATTN_FLASH = 0, ATTN_DECODE, ATTN_PREFILL, ATTN_LINEAR, ATTN_ROPE } attn_operation;

/* Says whether attn_flash, attn_decode, attn_prefill, attn_linear or attn_rope serves a call. Returns NULL if it does.
 * Else returns one line that says what is not allowed and what is; the line is valid until the thread's next call. The
 * call itself would return ATTN_BAD_INPUT with this line, or with another line if several arguments are not allowed.
 *
 * The arguments are those of the call, except stream: tensors in the order of the operation's function (for attn_rope
 * q, k, q_out, k_out), and a pointer to the operation's struct of options, or NULL. attn_why_not reads no tensor, so it
 * does not check the values of tables; it compiles and launches nothing. A tensor's data may be NULL, for an address
 * that is not known yet. o, q_out and k_out may be NULL, for a dense output of q's type.
 *
 * Without an engine (NULL) the line says what no device of the kind of q's device allows; an engine adds what its
 * device lacks. */
ATTN_API const char* attn_why_not(attn_engine* engine, attn_operation operation, const DLTensor* q, const DLTensor* k,
                                  const DLTensor* v, const DLTensor* o, const void* options);

#ifdef __cplusplus
}
#endif
#endif
