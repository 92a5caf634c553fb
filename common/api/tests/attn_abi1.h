/* The declarations of the first attn.h with ATTN_ABI_VERSION 1. A program that was compiled with that header must still
 * work (abi1.c), so these declarations never change. Since then, soft_cap has changed from int64_t to double, and the
 * structs of options have grown at their ends. common/api/attn.h explains the functions and the options. */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifndef DLPACK_DLPACK_H_
typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
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

#define ATTN_ABI_VERSION 1
#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

typedef enum {
  ATTN_OK = 0,
  ATTN_BAD_INPUT = 1,
  ATTN_NO_DEVICE = 2,
  ATTN_NOT_COMPILED = 3,
  ATTN_OUT_OF_MEMORY = 4,
  ATTN_DEVICE_LOST = 5,
  ATTN_FAILED = 6
} attn_status;

typedef enum { ATTN_BHSD = 0, ATTN_BSHD = 1 } attn_layout;

typedef struct attn_engine attn_engine;

typedef struct {
  size_t struct_bytes;
  const char* cache_folder;
  const char* archive;
} attn_open_options;

ATTN_API int attn_abi_version(void);

ATTN_API const char* attn_message(void);

ATTN_API int attn_has_backend(const char* backend);

ATTN_API attn_status attn_open(const char* device, const attn_open_options* options, attn_engine** engine);

ATTN_API void attn_close(attn_engine* engine);

ATTN_API attn_status attn_save_archive(attn_engine* engine, const char* path);

ATTN_API size_t attn_prepared(attn_engine* engine);

ATTN_API attn_status attn_empty(attn_engine* engine, void* stream);

typedef struct {
  size_t struct_bytes;
  attn_layout layout;
  int causal;
  double scale;
  int64_t soft_cap;
  int64_t window_left;
  int64_t window_right;
  int64_t prefix;
  int64_t global_tokens;
  int alibi;

  const DLTensor* alibi_slopes;
  const DLTensor* sinks;
  const DLTensor* lengths;
  const DLTensor* documents;

  const DLTensor* blocks;

  const DLTensor* bias;
  const DLTensor* lse;
} attn_flash_options;
#define ATTN_FLASH_OPTIONS \
  {sizeof(attn_flash_options), ATTN_BHSD, 0, 0, 0, -1, -1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

ATTN_API attn_status attn_flash(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* o, const attn_flash_options* options);

typedef struct {
  size_t struct_bytes;
  attn_layout layout;
  attn_layout cache_layout;
  double scale;
  const DLTensor* lengths;
  const DLTensor* table;
  const DLTensor* k_scales;
  const DLTensor* v_scales;

  const DLTensor* new_k;
  const DLTensor* new_v;

  const DLTensor* cosines;
  const DLTensor* sines;
  int interleaved;
  const DLTensor* lse;
} attn_cache_options;
#define ATTN_CACHE_OPTIONS \
  {sizeof(attn_cache_options), ATTN_BHSD, ATTN_BHSD, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL}

ATTN_API attn_status attn_decode(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                 const DLTensor* v, const DLTensor* o, const attn_cache_options* options);
ATTN_API attn_status attn_prefill(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                  const DLTensor* v, const DLTensor* o, const attn_cache_options* options);

ATTN_API attn_status attn_check_cache(attn_engine* engine, void* stream, const DLTensor* k,
                                      const attn_cache_options* options);

typedef struct {
  size_t struct_bytes;
  attn_layout layout;
  int causal;
  int normalised;
  const char* feature;
  double scale;

  const DLTensor* gate;
  const DLTensor* initial_state;
  const DLTensor* final_state;
} attn_linear_options;
#define ATTN_LINEAR_OPTIONS {sizeof(attn_linear_options), ATTN_BHSD, 1, 0, NULL, 0, NULL, NULL, NULL}

ATTN_API attn_status attn_linear(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                                 const DLTensor* v, const DLTensor* o, const attn_linear_options* options);

typedef enum {
  ATTN_ROPE_PLAIN = 0,
  ATTN_ROPE_LINEAR,
  ATTN_ROPE_NTK,
  ATTN_ROPE_YARN,
  ATTN_ROPE_LLAMA3
} attn_rope_scaling;
typedef struct {
  size_t struct_bytes;
  attn_layout layout;
  int64_t rotary_dim;
  int interleaved;
  double theta;
  attn_rope_scaling scaling;
  double factor;
  double original_length;
  const DLTensor* offsets;
} attn_rope_options;
#define ATTN_ROPE_OPTIONS {sizeof(attn_rope_options), ATTN_BHSD, 0, 0, 10000, ATTN_ROPE_PLAIN, 1, 8192, NULL}

ATTN_API attn_status attn_rope(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k,
                               const DLTensor* q_out, const DLTensor* k_out, const attn_rope_options* options);

#ifdef __cplusplus
}
#endif
#endif
