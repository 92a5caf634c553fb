// Calls a function that halide_pipelines.py generated, for BLOCK_R rows of one head. Halide's run-time library is not
// linked: this file defines the functions of it that the generated code calls. A loop that a schedule makes parallel
// runs in the thread of its threadgroup.
//
// The function writes BLOCK_R rows and a multiple of MULTIPLE columns. If fewer rows or columns exist, it writes to
// threadgroup memory, and the kernel copies the rows and columns that exist to the output.
//
// Threadgroup memory: edge [BLOCK_R][columns, rounded up to a multiple of MULTIPLE], in floats. Grid: (row tiles,
// heads). Causal tiles run from the last rows to the first, so that the long tiles do not come at the end. Function
// constants: WORK, BLOCK_R, MULTIPLE, and HEAD_DIM and CAUSAL if the work has them.
#include "common/attention/kernels/round_up.h"
#include "common/kernel/cpu.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

// Dimension and Image have the layouts of halide_dimension_t and halide_buffer_t in HalideRuntime.h.
struct Dimension {
  int min, extent, stride;
  unsigned flags;
};
struct Image {
  unsigned long long device;
  const void* device_interface;
  void* host;
  unsigned long long flags;
  unsigned char type_code, type_bits;
  unsigned short lanes;
  int dimensions;
  Dimension* dim;
  void* padding;
};

/// A dense matrix of floats.
struct Matrix {
  Dimension dims[2];
  Image image = {};

  INLINE Matrix(const void* data, long offset, int columns, int rows)
      : dims{{0, columns, 1, 0}, {0, rows, columns, 0}} {
    constexpr unsigned char float_code = 2;
    image.host = static_cast<float*>(const_cast<void*>(data)) + offset;
    image.type_code = float_code;
    image.type_bits = 32;
    image.lanes = 1;
    image.dimensions = 2;
    image.dim = dims;
  }
  Matrix(const Matrix&) = delete;
};

INLINE int smaller(int a, int b) { return a < b ? a : b; }

}  // namespace

extern "C" {

#if WORK_VALUE == 0
int halide_scores(Image* q, Image* k, int keys, int rows, float scale, Image* out);
#elif WORK_VALUE == 1
int halide_softmax(Image* in, int keys, int rows, Image* out);
#elif WORK_VALUE == 2
int halide_values(Image* in, Image* v, int keys, int rows, Image* out);
#else
int halide_attention(Image* q, Image* k, Image* v, int keys, int rows, int first, float scale, float slope, Image* out);
#endif

// Functions of the host's C library.
void* aligned_alloc(unsigned long alignment, unsigned long bytes);
void free(void* pointer);

void* halide_malloc(void* /*context*/, unsigned long bytes) {
  constexpr long alignment = 128;
  return aligned_alloc(alignment, static_cast<unsigned long>(round_up(static_cast<long long>(bytes), alignment)));
}
void halide_free(void* /*context*/, void* pointer) { free(pointer); }
int halide_do_par_for(void* context, int (*task)(void*, int, unsigned char*), int min, int size,
                      unsigned char* closure) {
  int error = 0;
  for (int i = min; i < min + size && error == 0; ++i) error = task(context, i, closure);
  return error;
}

void codegen_halide(const CodegenParams* params, const Threadgroup* group) {
  const CodegenParams& p = *params;
#if WORK_VALUE >= 3
  const unsigned tile = CAUSAL ? group->count[0] - 1 - group->index[0] : group->index[0];
  // The tile sees the keys before `end`.
  const int end = CAUSAL ? smaller((static_cast<int>(tile) + 1) * BLOCK_R, p.kv_len) : p.kv_len;
#else
  const unsigned tile = group->index[0];
  const int end = p.kv_len;
#endif
  const int first = static_cast<int>(tile) * BLOCK_R, rows = smaller(p.q_len - first, BLOCK_R);
  const long head = group->index[1], row = head * p.q_len + first;
#if WORK_VALUE <= 1
  const int columns = p.kv_len;
#else
  const int columns = HEAD_DIM;
#endif
  const int padded = static_cast<int>(round_up(columns, MULTIPLE));
  const bool whole = rows == BLOCK_R && columns == padded;
  Matrix out(whole ? p.out : group->memory, whole ? row * columns : 0, padded, BLOCK_R);
#if WORK_VALUE == 0
  static_assert(WORK == WORK_SCORES);
  Matrix q(p.q, row * HEAD_DIM, HEAD_DIM, rows), k(p.k, head * p.kv_len * HEAD_DIM, HEAD_DIM, p.kv_len);
  halide_scores(&q.image, &k.image, end, rows, p.scale, &out.image);
#elif WORK_VALUE == 1
  static_assert(WORK == WORK_SOFTMAX);
  Matrix in(p.in, row * p.kv_len, p.kv_len, rows);
  halide_softmax(&in.image, end, rows, &out.image);
#elif WORK_VALUE == 2
  static_assert(WORK == WORK_VALUES);
  Matrix in(p.in, row * p.kv_len, p.kv_len, rows), v(p.v, head * p.kv_len * HEAD_DIM, HEAD_DIM, p.kv_len);
  halide_values(&in.image, &v.image, end, rows, &out.image);
#else
  const long keys = head * p.kv_len * HEAD_DIM;
  Matrix q(p.q, row * HEAD_DIM, HEAD_DIM, rows), k(p.k, keys, HEAD_DIM, p.kv_len), v(p.v, keys, HEAD_DIM, p.kv_len);
  const float slope = WORK == WORK_MODIFIED ? p.slopes[head] : 0;
  halide_attention(&q.image, &k.image, &v.image, end, rows, first, p.scale, slope, &out.image);
#endif
  if (whole) return;
  const float* const edge = reinterpret_cast<const float*>(group->memory);
  float* const to = static_cast<float*>(p.out) + row * columns;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) to[r * static_cast<long>(columns) + c] = edge[r * static_cast<long>(padded) + c];
  }
}

}  // extern "C"
