// Linear attention in one pass on Hopper's tensor cores. Q, K and V have 16 bits; the state is f32 and lies in
// registers.
//
// A threadgroup computes 64 value columns of a sequence and head at a time. Chunks of 64 tokens pass through STAGES
// buffers. One thread fills the buffers by tensor copies. One warpgroup computes the state S, and another warpgroup the
// outputs O:
//
//   S = e^G_end S + K^T (e^(G_end - G_j) V)
//   O = e^G (Q S) + (Q K^T o M) V,   M_ij = e^(G_i - G_j) for j <= i
//
// The sign o between matrices multiplies element by element; M_ij is 0 for j > i. G_i is the sum of the logarithms of
// the decays of the chunk's tokens 0 to i; G_end is G of the last token (Dao and Gu 2024, Mamba-2; Yang et al. 2024).
// Shared memory has a copy of S, rounded to 16 bits, for the product Q S. So one warpgroup computes the state after a
// chunk while the other computes the outputs of this chunk. In f16 an element of the copy is infinite if the absolute
// value of the element of S is 65520 or more.
//
// If sequences and heads do not fill the device, a sequence is cut into segments. Unless its segment is the last, a
// task first reads the segment's keys and values, and publishes the segment's own state: what the segment adds to S.
// Then each task computes the state before its segment from what earlier segments have published (decoupled look-back,
// Merrill and Garland 2016), and computes the outputs. Threadgroups take tasks in the order of the tasks' segments. So
// a task waits only for tasks that some threadgroup has begun. The keys and values of a segment of at most STAGES
// chunks stay in shared memory, and are read only once.
//
// If NORMALISED, the kernel computes the key sum z by products too: K^T times the tokens' decays. The decays fill eight
// columns, the least width of a product on a tensor core. The feature map is applied to Q and K in shared memory.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), STAGES, GATE (none, head or token), NORMALISED, IN_TYPE.
// Grid: at most as many threadgroups as run at the same time, one on a multiprocessor; 384 threads; FusedLayout's
// threadgroup memory.
//
// Checked: fused[GATE=0,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,STAGES=8] without spills
// Checked: fused[GATE=2,HEAD_DIM=64,IN_TYPE=2,NORMALISED=1,STAGES=8] without spills
// Checked: fused[GATE=0,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,STAGES=5] without spills
// Checked: fused[GATE=2,HEAD_DIM=128,IN_TYPE=1,NORMALISED=1,STAGES=4] without spills
// Checked: fused[GATE=0,HEAD_DIM=256,IN_TYPE=2,NORMALISED=0,STAGES=2] without spills
// Checked: fused[GATE=2,HEAD_DIM=256,IN_TYPE=2,NORMALISED=1,STAGES=2] without spills
#define MMA_WIDTH(n) false
#include "common/kernel/wgmma.h"
#include "common/linear/kernels/exact_tokens.h"
#include "common/linear/kernels/fused.h"

namespace {

constexpr bool GATED = GATE != GATE_NONE;
constexpr FusedLayout layout(HEAD_DIM, STAGES, GATED, NORMALISED);
constexpr int PANELS = layout.panels;
constexpr int CHUNK = fused_chunk;
constexpr int PANEL_BYTES = FusedLayout::panel_bytes;
constexpr int K_STEP = 32 / 16;                     // how much a descriptor grows for 16 columns
constexpr int MN_STEP = 16 * PANEL_ROW_BYTES / 16;  // for 16 rows
constexpr int NARROW_STEP = 16 * 16 / 16;           // for a narrow operand: 16 rows of 8 columns
constexpr int STATE_FLOATS = fused_state_floats(HEAD_DIM, NORMALISED);
constexpr int QUADS = NORMALISED ? 9 : 8;  // groups of four floats in a thread's part of a panel of the state
constexpr int no_more_tasks = -1;
static_assert(GATE != GATE_CHANNEL, "a gate of every row of S does not leave Q K^T one product");

extern __shared__ __align__(1024) unsigned char memory[];

struct Barriers {
  Barrier full[STAGES], empty[STAGES];
  Barrier state_written, state_read;  // for the 16-bit copy of S, once for each chunk of outputs
  int task[STAGES];                   // the task of the stage's chunk
};
static_assert(sizeof(Barriers) <= 1024);

DEVICE Barriers& barriers() { return *reinterpret_cast<Barriers*>(memory + layout.barriers); }

struct Ring {
  int index = 0;
  unsigned parity = 0;
  DEVICE void advance() {
    if (++index == STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
};

struct Task {
  int segment, slot, sequence, head, slice;
  int batch, first_row;  // of the sequence in the tensors
  int tokens;            // of the sequence
  int chunk, end;        // the segment's chunks
  bool last;             // no segment of the sequence follows
  bool resident;         // all chunks of the segment stay in shared memory
};

DEVICE Task task_of(const FusedParams& p, int number) {
  Task task;
  task.segment = number / p.slots;
  task.slot = number - task.segment * p.slots;
  const int pair = task.slot / p.slices;
  task.slice = task.slot - pair * p.slices;
  task.sequence = pair / p.linear.heads;
  task.head = pair - task.sequence * p.linear.heads;
  task.batch = task.sequence;
  task.first_row = 0;
  task.tokens = p.linear.tokens;
  if (p.linear.starts) {
    task.batch = 0;
    task.first_row = p.linear.starts[task.sequence];
    task.tokens = p.linear.starts[task.sequence + 1] - task.first_row;
  }
  const int chunks = (task.tokens + CHUNK - 1) / CHUNK;
  task.chunk = task.segment * p.segment_chunks;
  task.end = min(task.chunk + p.segment_chunks, chunks);
  task.last = task.end == chunks;
  task.resident = task.end - task.chunk <= STAGES;
  return task;
}
/// Whether the segment lies after the end of its sequence.
DEVICE bool is_beyond(const Task& task) { return task.segment > 0 && task.chunk >= task.end; }

// ---- producer: one thread

DEVICE void copy_chunk(const FusedParams& p, const Task& task, int number, int chunk, bool with_q, Ring& ring) {
  Barriers& bars = barriers();
  unsigned char* const stage = memory + ring.index * layout.stage_bytes;
  Barrier& full = bars.full[ring.index];
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  full.arrive_expect((PANELS * (with_q ? 2 : 1) + 1) * PANEL_BYTES);
  const int row = task.first_row + chunk * CHUNK;
  UNROLL for (int panel = 0; panel < PANELS; ++panel) {
    copy_box(stage + layout.k + panel * PANEL_BYTES, p.k, full, panel * 64, row, task.head, task.batch, 0);
    if (with_q) copy_box(stage + panel * PANEL_BYTES, p.q, full, panel * 64, row, task.head, task.batch, 0);
  }
  copy_box(stage + layout.v, p.v, full, task.slice * 64, row, task.head, task.batch, 0);
  ring.advance();
}

// Passes a stage without a chunk, to tell the consumers `number`: the number of a task without chunks, or
// no_more_tasks.
DEVICE void tell(int number, Ring& ring) {
  Barriers& bars = barriers();
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  bars.full[ring.index].arrive();
  ring.advance();
}

DEVICE void produce(const FusedParams& p) {
  Ring ring;
  int next;
  for (int number = blockIdx.x; number < p.tasks; number = next) {
    next = static_cast<int>(gridDim.x + atomicAdd(p.counters, 1));
    const Task task = task_of(p, number);
    if (is_beyond(task)) continue;
    if (!task.last && !task.resident) {
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, false, ring);
    }
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, true, ring);
    if (task.chunk >= task.end) tell(number, ring);
  }
  tell(no_more_tasks, ring);
  // The last threadgroup to finish resets the counters for the next launch.
  __threadfence();
  if (atomicAdd(p.counters + 1, 1) == gridDim.x - 1) {
    p.counters[0] = 0;
    p.counters[1] = 0;
    p.counters[2] += 1;
  }
}

// ---- products: D[64 x 64] = A B, or D += A B. TA is 1 if A is MN major, TB is 1 if B is MN major.

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(d) D4(d, 0), D4(d, 4), D4(d, 8), D4(d, 12), D4(d, 16), D4(d, 20), D4(d, 24), D4(d, 28)
#define D32_NAMES                                                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
  "%29,%30,%31}"

#define MMA_SHARED(NAME)                                                                                        \
  asm volatile(                                                                                                 \
      "{.reg .pred add; .reg .b64 a, b;\n"                                                                      \
      "setp.ne.b32 add, %34, 0; mov.b64 a, {%32, %35}; mov.b64 b, {%33, %35};\n"                                \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " D32_NAMES ", a, b, add, 1, 1, %36, %37;}" \
      : D32(d)                                                                                                  \
      : "r"(a), "r"(b), "r"(add), "n"(operand_high), "n"(TA), "n"(TB))
#define MMA_REGISTERS(NAME)                                                     \
  asm volatile(                                                                 \
      "{.reg .pred add; .reg .b64 b;\n"                                         \
      "setp.ne.b32 add, %37, 0; mov.b64 b, {%36, %38};\n"                       \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " D32_NAMES \
      ", {%32,%33,%34,%35}, b, add, 1, 1, 1;}"                                  \
      : D32(d)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(operand_high))

// D[64 x 8]; B is K major and not swizzled: a column's eight rows take 16 bytes, and the columns follow one another.
#define MMA_NARROW(NAME)                                                                                    \
  asm volatile(                                                                                             \
      "{.reg .pred add; .reg .b64 a, b;\n"                                                                  \
      "setp.ne.b32 add, %6, 0; mov.b64 a, {%4, %7}; mov.b64 b, {%5, %8};\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." NAME "." NAME " {%0,%1,%2,%3}, a, b, add, 1, 1, %9, 0;}" \
      : D4(d, 0)                                                                                            \
      : "r"(a), "r"(b), "r"(add), "n"(operand_high), "n"(NARROW_OPERAND_HIGH), "n"(TA))

template <int TA>
DEVICE void multiply_narrow(float (&d)[4], unsigned a, unsigned b, int add) {
  if constexpr (IN_TYPE == BF16) {
    MMA_NARROW("bf16");
  } else {
    MMA_NARROW("f16");
  }
}
template <int TA, int TB>
DEVICE void multiply(float (&d)[32], unsigned a, unsigned b, int add) {
  if constexpr (IN_TYPE == BF16) {
    MMA_SHARED("bf16");
  } else {
    MMA_SHARED("f16");
  }
}
DEVICE void multiply_registers(float (&d)[32], const unsigned* a, unsigned b, int add) {
  if constexpr (IN_TYPE == BF16) {
    MMA_REGISTERS("bf16");
  } else {
    MMA_REGISTERS("f16");
  }
}

// ---- states and flags in device memory

DEVICE void store_flag(unsigned* flag, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DEVICE unsigned load_flag(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
// Reads from the L2 cache, which has the data that other threadgroups have written.
DEVICE float4 load_shared_state(const float4* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
DEVICE float load_shared_float(const float* from) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}

// What a segment has published: its own state, or the state after the segment. The segment's flag is this value plus
// the launch's epoch.
enum Published { OWN = 1, INCLUSIVE = 2 };

/// Calls act(x) for both 16-bit elements of a pair, and returns the pair of results.
template <class Act>
DEVICE unsigned each_of_pair(unsigned pair, Act act) {
  float low, high;
  if constexpr (IN_TYPE == BF16) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xFFFF0000u);
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
  return pack<IN_TYPE>(act(low), act(high));
}
template <class Act>
DEVICE uint4 each_of_eight(uint4 x, Act act) {
  return make_uint4(each_of_pair(x.x, act), each_of_pair(x.y, act), each_of_pair(x.z, act), each_of_pair(x.w, act));
}

DEVICE void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- members of both warpgroups. A thread holds parts of rows `row` and `row` + 8 of 64: see common/kernel/wgmma.h.

constexpr int state_barrier = 1, both_barrier = 2;  // named barriers: of the state's warpgroup, of both warpgroups

struct Warpgroup {
  const FusedParams& p;
  const int index;  // 0: has the state, 1: computes the outputs
  const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4;  // of the 64
  const int column = lane % 4 * 2;       // of 8
  unsigned state_parity = 0;             // of the next copy of S
  float gates[2];                        // gates of the next chunk's tokens 2 * lane and 2 * lane + 1

  DEVICE Warpgroup(const FusedParams& params, int number) : p(params), index(number) {}

  DEVICE static unsigned char* stage_of(const Ring& ring) { return memory + ring.index * layout.stage_bytes; }
  /// Arrives at the barrier when all threads of the warp have done their work.
  DEVICE void arrive(Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
    __syncwarp();
  }
  DEVICE void release(const Ring& ring) { arrive(barriers().empty[ring.index]); }
  /// Returns this warp's own copy of the sums of the chunk's log decays.
  DEVICE float* sums() const {
    return reinterpret_cast<float*>(memory + layout.barriers + 1024) + (index * 4 + warp) * CHUNK;
  }

  // Returns the address of a lane's 16 bytes in a 64 x 64 panel, for stmatrix of two groups of 8 columns.
  DEVICE unsigned matrix_address(const void* panel) const {
    return shared_address(panel) + (warp * 16 + lane % 16) * PANEL_ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
  }
  DEVICE void store_panel(void* panel, const float (&x)[32], float a, float b) {
    const unsigned to = matrix_address(panel);
    UNROLL for (int j = 0; j < 4; ++j) {
      const float* d = x + 8 * j;
      store_matrices(to ^ j * 32, pack<IN_TYPE>(d[0] * a, d[1] * a), pack<IN_TYPE>(d[2] * b, d[3] * b),
                     pack<IN_TYPE>(d[4] * a, d[5] * a), pack<IN_TYPE>(d[6] * b, d[7] * b));
    }
  }

  // ---- gates

  // Loads a chunk's gates, and does not use them yet. So the thread does not wait for the loads.
  DEVICE void read_gates(const Task& task, int chunk) {
    if constexpr (GATED) {
      if (chunk >= task.end) return;
      const LinearParams& a = p.linear;
      UNROLL for (int i = 0; i < 2; ++i) {
        const int token = min(chunk * CHUNK + 2 * lane + i, task.tokens - 1);
        gates[i] = GATE == GATE_HEAD ? a.gate[task.head]
                                     : a.gate[task.batch * a.gate_strides.batch + task.head * a.gate_strides.head +
                                              (task.first_row + token) * a.gate_strides.row];
      }
    }
  }

  // Computes the sums of this chunk's gates, as logarithms in base 2, and loads the next chunk's gates. Returns the sum
  // of all gates of the chunk.
  DEVICE float sum_gates(const Task& task, int chunk) {
    constexpr float smallest = -200;  // 2^-200 is 0 in f32; sums stay finite
    float gate[2];
    UNROLL for (int i = 0; i < 2; ++i) {
      gate[i] = chunk * CHUNK + 2 * lane + i < task.tokens ? at_least(gates[i] * log2_e, smallest) : 0.0f;
    }
    read_gates(task, chunk + 1);
    float sum = gate[0] + gate[1], before = 0;  // sum - gate[1] would be NaN if gate[1] is NaN
    UNROLL for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(~0u, sum, step);
      if (lane < step) continue;
      before += other;
      sum += other;
    }
    float* const to = sums();
    __syncwarp();
    *reinterpret_cast<float2*>(to + 2 * lane) = make_float2(before + gate[0], sum);
    __syncwarp();
    return __shfl_sync(~0u, sum, 31);
  }

  // ---- preparing a chunk's tiles for the products

  // Applies f to a tile's elements. Rows from `rows` on become zero, because f(0) need not be 0.
  DEVICE void map_features(unsigned char* tile, int rows) {
#pragma unroll 2
    for (int i = index * WARPGROUP + thread; i < PANELS * 512; i += 2 * WARPGROUP) {
      const int r = i / 8 % 64, group = i % 8 ^ r % 8;
      if (i / 512 * 64 + group * 8 >= HEAD_DIM) continue;
      uint4& x = reinterpret_cast<uint4*>(tile)[i];
      x = each_of_eight(x, [&](float y) { return r < rows ? feature(y, p.linear.feature_data) : 0.0f; });
    }
  }
  // Clears the rows from `rows` on. In the tensor these rows belong to the next sequence.
  DEVICE void clear_rows(unsigned char* panel, int rows) {
    for (int i = rows * 8 + thread; i < 512; i += WARPGROUP)
      reinterpret_cast<uint4*>(panel)[i] = make_uint4(0, 0, 0, 0);
  }
  // Applies the feature map to the chunk's tiles, and clears rows of other sequences. If a chunk needs a
  // change, both warpgroups must call prepare() for this chunk, because prepare() waits for both.
  DEVICE void prepare(const Task& task, int chunk, unsigned char* stage, bool with_q, bool with_k) {
    const int rows = task.tokens - chunk * CHUNK;
    const bool clears = p.linear.starts && rows < CHUNK;
    if constexpr (FEATURE_IS_IDENTITY) {
      if (!clears) return;
      for (int panel = index; panel < PANELS; panel += 2) clear_rows(stage + layout.k + panel * PANEL_BYTES, rows);
    } else {
      if (with_q) map_features(stage, CHUNK);
      if (with_k) map_features(stage + layout.k, rows);
    }
    if (clears && index == 0) clear_rows(stage + layout.v, rows);
    fence_stores();
    __syncwarp();
    named_sync(both_barrier, 2 * WARPGROUP);
  }
  /// Calls act(task, ring) for each of the threadgroup's tasks that has chunks or a final state.
  template <class Act>
  DEVICE void each_task(Act act) {
    Ring ring;
    while (true) {
      Barriers& bars = barriers();
      bars.full[ring.index].wait(ring.parity);
      const int number = bars.task[ring.index];
      if (number == no_more_tasks) break;
      const Task task = task_of(p, number);
      act(task, ring);
      if (task.chunk >= task.end) {
        release(ring);
        ring.advance();
      }
    }
  }
};

// ---- the state

struct State : Warpgroup {
  const unsigned epoch;      // flags of this launch are above this number
  float state[PANELS][32];   // this thread's part of S: 32 of the 64 x 64 elements of each panel
  float key_sum[PANELS][4];  // NORMALISED: the thread's two rows of each panel, each row twice
  float total;               // decay of the segment's chunks until now, log2

  DEVICE State(const FusedParams& params, unsigned launches) : Warpgroup(params, 0), epoch(launches) {}

  DEVICE void sync() {
    __syncwarp();
    named_sync(state_barrier, WARPGROUP);
  }

  // Stores z as the sum of two numbers of 16 bits: z rounded, and the difference between z and this first number,
  // rounded. Four columns have the first number, four columns the second number.
  DEVICE void store_key_sum() {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float z = key_sum[panel][2 * r];
        auto* const to = reinterpret_cast<unsigned short*>(memory + layout.key_sum + panel * 1024) +
                         (row + 8 * r) / 8 * 64 + column * 8 + row % 8;
        store_float<IN_TYPE>(to, 0, z);
        store_float<IN_TYPE>(to, 8, z - load_float<IN_TYPE>(to, 0));
      }
    }
  }
  // Clears rows beyond HEAD_DIM. K is 0 in these rows, but 0 times an infinite value is NaN, and the product Q S would
  // spread the NaN to all outputs.
  DEVICE void clear_rows_beyond(int panel) {
    UNROLL for (int i = 0; i < 32; ++i) {
      if (panel * 64 + row + i / 2 % 2 * 8 >= HEAD_DIM) state[panel][i] = 0;
    }
  }

  // Stores S for the next chunk's Q S.
  DEVICE void store_state() {
    Barriers& bars = barriers();
    bars.state_read.wait(state_parity ^ 1);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      if constexpr (HEAD_DIM % 64 != 0) clear_rows_beyond(panel);
      store_panel(memory + layout.state + panel * PANEL_BYTES, state[panel], 1, 1);
    }
    if constexpr (NORMALISED) store_key_sum();
    fence_stores();
    arrive(bars.state_written);
    state_parity ^= 1;
  }

  // Multiplies V of each token by the decay from the token to the chunk's end, and stores the result. If NORMALISED,
  // this function stores these decays too.
  DEVICE void decay_values(const unsigned char* stage, float chunk_sum) {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int at = i * WARPGROUP + thread;  // eight of a token's 64 columns
      const float factor = exp2_approx(chunk_sum - sums()[at / 8]);
      reinterpret_cast<uint4*>(memory + layout.values)[at] =
          each_of_eight(reinterpret_cast<const uint4*>(stage + layout.v)[at], [&](float y) { return y * factor; });
    }
    if constexpr (NORMALISED) {
      unsigned pairs[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        const float* from = sums() + thread / 8 % 8 * 8 + 2 * i;
        pairs[i] = pack<IN_TYPE>(exp2_approx(chunk_sum - from[0]), exp2_approx(chunk_sum - from[1]));
      }
      if (thread < 64) store_weights(pairs);
    }
    fence_stores();
  }
  // For threads 0 to 63: each thread stores eight tokens of one of the eight columns.
  DEVICE void store_weights(const unsigned (&x)[4]) {
    *reinterpret_cast<uint4*>(memory + layout.weights + thread * 16) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  DEVICE void decay_state(float sum) {
    const float factor = exp2_approx(sum);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) state[panel][i] *= factor;
      UNROLL for (int i = 0; NORMALISED && i < 4; ++i) key_sum[panel][i] *= factor;
    }
  }

  // S = e^G_end S + K^T V; if gated, V is multiplied by its decays.
  DEVICE void add_chunk(const Task& task, int chunk, const Ring& ring, bool with_q, bool with_k) {
    barriers().full[ring.index].wait(ring.parity);
    unsigned char* const stage = stage_of(ring);
    prepare(task, chunk, stage, with_q, with_k);
    if constexpr (GATED) {
      const float sum = sum_gates(task, chunk);
      decay_values(stage, sum);
      decay_state(sum);
      total += sum;
      sync();
    }
    const unsigned k = operand(stage + layout.k), v = operand(GATED ? memory + layout.values : stage + layout.v);
    mma_fence();
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < CHUNK / 16; ++step) {
        const unsigned at = k + panel * (PANEL_BYTES / 16) + step * MN_STEP;
        multiply<1, 1>(state[panel], at, v + step * MN_STEP, 1);
        if constexpr (NORMALISED) {
          multiply_narrow<1>(key_sum[panel], at, narrow_operand(memory + layout.weights) + step * NARROW_STEP, 1);
        }
      }
    }
    mma_commit();
    mma_wait<0>();
    if constexpr (GATED) sync();  // all products have read `values` and `weights`, which the next chunk overwrites
  }

  // ---- states

  DEVICE void clear_state() {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) state[panel][i] = 0;
      UNROLL for (int i = 0; i < 4; ++i) key_sum[panel][i] = 0;
    }
  }
  // Calls act(element, index in a [sequences, heads, HEAD_DIM, value_dim] tensor) for each of this thread's elements
  // that exists.
  template <class Act>
  DEVICE void each_element(const Task& task, Act act) {
    const long long base =
        (static_cast<long long>(task.sequence) * p.linear.heads + task.head) * HEAD_DIM * p.value_dim;
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) {
        const int r = panel * 64 + row + i / 2 % 2 * 8;
        const int c = task.slice * 64 + i / 4 * 8 + column + i % 2;
        if (r < HEAD_DIM && c < p.value_dim) act(state[panel][i], base + static_cast<long long>(r) * p.value_dim + c);
      }
    }
  }
  DEVICE void load_initial(const Task& task) {
    clear_state();
    const float* const from = p.linear.initial_state;
    if (from) each_element(task, [&](float& x, long long at) { x = from[at]; });
    if (NORMALISED && p.linear.initial_key_sum) {
      const float* const sums = p.linear.initial_key_sum + key_sum_place(task);
      UNROLL for (int panel = 0; panel < PANELS; ++panel) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const int r = panel * 64 + row + i / 2 * 8;
          if (r < HEAD_DIM) key_sum[panel][i] = sums[r];
        }
      }
    }
  }
  DEVICE long long key_sum_place(const Task& task) const {
    return (static_cast<long long>(task.sequence) * p.linear.heads + task.head) * HEAD_DIM;
  }
  DEVICE void store_final(const Task& task) {
    float* const to = p.linear.final_state;
    if (to) each_element(task, [&](float& x, long long at) { to[at] = x; });
    if (NORMALISED && p.linear.final_key_sum && task.slice == 0 && lane % 4 == 0) {
      float* const sums = p.linear.final_key_sum + key_sum_place(task);
      UNROLL for (int panel = 0; panel < PANELS; ++panel) {
        UNROLL for (int r = 0; r < 2; ++r) {
          const int at = panel * 64 + row + r * 8;
          if (at < HEAD_DIM) sums[at] = key_sum[panel][2 * r];
        }
      }
    }
  }

  // Returns the address of this thread's part of a segment's own state, or of the state after this segment and all
  // segments before it.
  DEVICE float4* published(int segment, int slot, Published what) const {
    const long long place = static_cast<long long>(segment % (2 * p.reach)) * p.slots + slot;
    return reinterpret_cast<float4*>(p.states + ((place * 2 + (what - 1))) * STATE_FLOATS) + thread;
  }
  DEVICE unsigned* flag(int segment, int slot) const {
    return p.flags + (static_cast<long long>(segment) * p.slots + slot);
  }
  // Sets the segment's flag after all threads have stored a state.
  DEVICE void publish(const Task& task, Published what) {
    if (thread == 0 && what == OWN) {
      p.totals[(static_cast<long long>(task.segment) * p.slots + task.slot)] = total;
    }
    sync();
    if (thread == 0) store_flag(flag(task.segment, task.slot), epoch + what);
  }
  /// Returns four floats of the state, or, for i = 8, of z.
  DEVICE float* quad(int panel, int i) { return i < 8 ? state[panel] + 4 * i : key_sum[panel]; }
  DEVICE void put_state(float4* to) {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < QUADS; ++i) {
        const float* x = quad(panel, i);
        to[(panel * QUADS + i) * WARPGROUP] = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
  }
  // state += the sum of COUNT published states, each times its factor. All loads of a panel run at once.
  template <int COUNT>
  DEVICE void add_states(const float4* const (&from)[COUNT], const float (&factor)[COUNT]) {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      float4 x[COUNT][QUADS];
      UNROLL for (int n = 0; n < COUNT; ++n) {
        UNROLL for (int i = 0; i < QUADS; ++i) x[n][i] = load_shared_state(from[n] + (panel * QUADS + i) * WARPGROUP);
      }
      UNROLL for (int n = 0; n < COUNT; ++n) {
        UNROLL for (int i = 0; i < QUADS; ++i) {
          float* to = quad(panel, i);
          to[0] += factor[n] * x[n][i].x, to[1] += factor[n] * x[n][i].y;
          to[2] += factor[n] * x[n][i].z, to[3] += factor[n] * x[n][i].w;
        }
      }
    }
  }

  // The memory for published states is a ring. Waits until this segment's part of the ring is free: until the segment
  // that used this part before, and all segments that may look back to it, have published INCLUSIVE.
  DEVICE void wait_for_place(const Task& task) {
    const int segment = task.segment - 2 * p.reach + lane;
    if (segment >= 0 && lane <= p.reach) {
      while (static_cast<int>(load_flag(flag(segment, task.slot)) - epoch) < INCLUSIVE) {
      }
    }
    __syncwarp();
  }

  // Computes the state before the segment from what earlier segments have published. Each warp reads the flags itself.
  DEVICE void look_back(const Task& task) {
    clear_state();
    const int segment = task.segment - 1 - lane;
    const bool looks = segment >= 0 && lane < p.reach;
    unsigned inclusive;
    int count;
    while (true) {
      const int seen = looks ? static_cast<int>(load_flag(flag(segment, task.slot)) - epoch) : 0;
      inclusive = __ballot_sync(~0u, seen == INCLUSIVE);
      const unsigned ready = __ballot_sync(~0u, seen >= OWN);
      count = __ffs(inclusive) - 1;  // segments between the nearest INCLUSIVE segment and this segment
      if (count >= 0 && (ready & ((1u << count) - 1)) == (1u << count) - 1) break;
    }
    // log2 of the decay from the end of the lane's segment to the start of this segment.
    float own_total = 0, decay = 0;
    if constexpr (GATED) {
      if (lane < count) {
        own_total = load_shared_float(p.totals + (static_cast<long long>(segment) * p.slots + task.slot));
      }
      decay = own_total;
      UNROLL for (int step = 1; step < 32; step *= 2) {
        const float x = __shfl_up_sync(~0u, decay, step);
        if (lane >= step) decay += x;
      }
      decay -= own_total;
    }
    const auto at = [&](int i) { return published(task.segment - 1 - i, task.slot, i == count ? INCLUSIVE : OWN); };
    const auto factor = [&](int i) { return GATED ? exp2_approx(__shfl_sync(~0u, decay, i)) : 1.0f; };
    int i = 0;
    if constexpr (PANELS <= 2) {
#pragma unroll 1
      for (; i < count; i += 2) add_states<2>({at(i), at(i + 1)}, {factor(i), factor(i + 1)});
    }
#pragma unroll 1
    for (; i <= count; ++i) add_states<1>({at(i)}, {factor(i)});
  }

  // Adds the segment's chunks to `state`, which the caller has set to zero, or to the initial state if the segment is
  // the first. Returns the ring after these chunks.
  DEVICE Ring gather(const Task& task, Ring ring) {
    total = 0;
    read_gates(task, task.chunk);
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) {
      add_chunk(task, chunk, ring, false, true);
      if (!task.resident) release(ring);
      ring.advance();
    }
    return ring;
  }

  DEVICE void before_segment(const Task& task, Ring& ring) {
    if (task.segment == 0) {
      load_initial(task);
    } else {
      clear_state();
    }
    if (!task.last) {
      const Ring next_ring = gather(task, ring);
      if (!task.resident) ring = next_ring;
      wait_for_place(task);
      put_state(published(task.segment, task.slot, task.segment == 0 ? INCLUSIVE : OWN));
      publish(task, task.segment == 0 ? INCLUSIVE : OWN);
    }
    if (task.segment == 0) {
      if (!task.last) load_initial(task);
      return;
    }
    look_back(task);
    if (task.last) return;
    // The state before this segment and the segment's own state give the state that the next segments need.
    const float factor = GATED ? exp2_approx(total) : 1.0f;
    const float4* const from = published(task.segment, task.slot, OWN);
    float4* const to = published(task.segment, task.slot, INCLUSIVE);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < QUADS; ++i) {
        const float* x = quad(panel, i);
        float4 y = load_shared_state(from + (panel * QUADS + i) * WARPGROUP);
        y.x += factor * x[0], y.y += factor * x[1], y.z += factor * x[2], y.w += factor * x[3];
        to[(panel * QUADS + i) * WARPGROUP] = y;
      }
    }
    publish(task, INCLUSIVE);
  }

  DEVICE void run() {
    if constexpr (NORMALISED && !GATED) {  // all decays are 1
      const unsigned one = pack<IN_TYPE>(1, 1);
      if (thread < 64) store_weights({one, one, one, one});
      fence_stores();
      sync();
    }
    each_task([&](const Task& task, Ring& ring) {
      before_segment(task, ring);
      read_gates(task, task.chunk);
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) {
        store_state();
        add_chunk(task, chunk, ring, true, task.last || !task.resident);
        release(ring);
        ring.advance();
      }
      if (task.last) store_final(task);
    });
  }
};

// ---- the outputs

struct Outputs : Warpgroup {
  float s[32], o[32], divisor[4];
  unsigned weights[16];
  float row_decay[2];  // G of the thread's rows
  float row_sum[2];    // sums of the thread's weights in its rows

  DEVICE explicit Outputs(const FusedParams& params) : Warpgroup(params, 1) {}

  // Multiplies Q K^T by mask and decays. The result is the operand A of the next product.
  DEVICE void weigh() {
    if constexpr (GATED) {
      const float* const from = sums();
      UNROLL for (int r = 0; r < 2; ++r) row_decay[r] = from[row + 8 * r];
    }
    row_sum[0] = row_sum[1] = 0;
    UNROLL for (int j = 0; j < 8; ++j) {
      float x[4];
      [[maybe_unused]] float2 sum;
      if constexpr (GATED) sum = *reinterpret_cast<const float2*>(sums() + 8 * j + column);
      UNROLL for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + column + i % 2;
        float weight = s[4 * j + i];
        // This factor may be infinite, but only for pairs that the mask hides.
        if constexpr (GATED) weight *= exp2_approx(row_decay[i / 2] - (i % 2 ? sum.y : sum.x));
        x[i] = token <= row + i / 2 * 8 ? weight : 0.0f;
        if constexpr (NORMALISED) row_sum[i / 2] += x[i];
      }
      weights[2 * j] = pack<IN_TYPE>(x[0], x[1]);
      weights[2 * j + 1] = pack<IN_TYPE>(x[2], x[3]);
    }
  }

  DEVICE void compute_chunk(const Task& task, int chunk, const Ring& ring) {
    Barriers& bars = barriers();
    bars.full[ring.index].wait(ring.parity);
    unsigned char* const stage = stage_of(ring);
    prepare(task, chunk, stage, true, task.last || !task.resident);
    const unsigned q = operand(stage), k = operand(stage + layout.k), v = operand(stage + layout.v);
    mma_fence();
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < 4; ++step) {
        const int at = panel * (PANEL_BYTES / 16) + step * K_STEP;
        multiply<0, 0>(s, q + at, k + at, panel + step > 0);
      }
    }
    mma_commit();
    if constexpr (GATED) sum_gates(task, chunk);
    mma_wait<0>();
    weigh();
    bars.state_written.wait(state_parity);
    mma_fence();
    UNROLL for (int step = 0; step < 4; ++step) multiply_registers(o, weights + 4 * step, v + step * MN_STEP, step > 0);
    // If gated, Q S is a separate sum, because the code below multiplies its rows by decays.
    const unsigned before = operand(memory + layout.state);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < 4; ++step) {
        const int at = panel * (PANEL_BYTES / 16);
        multiply<0, 1>(GATED ? s : o, q + at + step * K_STEP, before + at + step * MN_STEP, !GATED || panel + step > 0);
        if constexpr (NORMALISED) {
          multiply_narrow<0>(divisor, q + at + step * K_STEP,
                             narrow_operand(memory + layout.key_sum) + (panel * 4 + step) * NARROW_STEP,
                             panel + step > 0);
        }
      }
    }
    mma_commit();
    mma_wait<0>();
    // The sum is NaN if the thread's first row has a NaN or an infinity. The reason may be a later token's value: a
    // value that is not finite makes an output of every row NaN or infinite, so it is enough to check one row.
    float zeros[4] = {};
    UNROLL for (int i = 0; i < 16; ++i) zeros[i % 4] += 0 * o[i / 2 * 4 + i % 2];
    const bool anew = some_not_finite((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])) && some_value_not_finite(stage);
    const auto let_go = [&] {
      arrive(bars.state_read);
      release(ring);
    };
    if (!anew) let_go();
    state_parity ^= 1;
    if constexpr (GATED) {
      const float factor[2] = {exp2_approx(row_decay[0]), exp2_approx(row_decay[1])};
      UNROLL for (int i = 0; i < 32; ++i) o[i] += factor[i / 2 % 2] * s[i];
      UNROLL for (int i = 0; NORMALISED && i < 4; ++i) divisor[i] *= factor[i / 2];
    }
    float scale[2] = {p.linear.scale, p.linear.scale};
    if constexpr (NORMALISED) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float sum = sum_of_quad(row_sum[r]) + (divisor[2 * r] + divisor[2 * r + 1]);
        scale[r] = sum != 0 ? 1 / sum : 0;
      }
    }
    if (lane == 0) wait_stores_read();
    __syncwarp();
    store_panel(memory + layout.out, o, scale[0], scale[1]);
    if (anew) {
      __syncwarp();
      write_rows_anew(task, chunk, scale);
      let_go();
    }
    fence_stores();
    __syncwarp();
    store_output(task, chunk);
  }

  // Whether V of the chunk has an infinity or a NaN.
  DEVICE bool some_value_not_finite(const unsigned char* stage) const {
    float zeros = 0;
#pragma unroll 1
    for (int i = lane; i < PANEL_BYTES / 16; i += 32) {
      each_of_eight(reinterpret_cast<const uint4*>(stage + layout.v)[i], [&](float x) { return zeros += 0 * x; });
    }
    return some_not_finite(zeros);
  }

  // Returns the address of an element of a panel of 64 columns, in the order of tensor copies.
  DEVICE static unsigned short* element(unsigned char* panel, int row, int column) {
    return reinterpret_cast<unsigned short*>(panel + row * PANEL_ROW_BYTES + (column / 8 ^ row % 8) * 16) + column % 8;
  }

  // Computes the warp's 16 rows of the panel of outputs anew (exact_tokens.h).
  DEVICE void write_rows_anew(const Task& task, int chunk, const float (&scale)[2]) const {
    const ExactTokens tokens{p.linear, task.batch, task.head, static_cast<long long>(task.first_row) + chunk * CHUNK};
    const int first_column = task.slice * 64, end = min(first_column + 64, p.value_dim);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int token = warp * 16 + i;
      if (chunk * CHUNK + token >= task.tokens) break;
      const float factor = __shfl_sync(~0u, i < 8 ? scale[0] : scale[1], i % 8 * 4);
      float outputs[2];
      tokens.outputs(
          token, token + 1, first_column, end,
          [&](int d, int column) {
            return load_float<IN_TYPE>(
                element(memory + layout.state + d / 64 * PANEL_BYTES, d % 64, column - first_column), 0);
          },
          outputs);
      UNROLL for (int c = 0; c < 2; ++c) {
        store_float<IN_TYPE>(element(memory + layout.out, token, lane + c * 32), 0, outputs[c] * factor);
      }
    }
  }

  // Copies the warp's 16 rows of the chunk's outputs from shared memory to device memory.
  DEVICE void store_output(const Task& task, int chunk) {
    const unsigned char* const from = memory + layout.out + warp * 16 * PANEL_ROW_BYTES;
    const int token = chunk * CHUNK + warp * 16, first_column = task.slice * 64;
    if (!p.linear.starts || token + 16 <= task.tokens) {
      if (lane == 0) {
        store_box(p.o, from, first_column, task.first_row + token, task.head, task.batch, 0);
        commit_stores();
      }
      return;
    }
    // The end of a sequence; another sequence follows in memory.
    const LinearParams& a = p.linear;
    const int r = lane / 2;
    if (token + r < task.tokens) {
      unsigned short* const to = static_cast<unsigned short*>(a.o) + task.batch * a.o_strides.batch +
                                 task.head * a.o_strides.head + (task.first_row + token + r) * a.o_strides.row;
      UNROLL for (int i = 0; i < 4; ++i) {
        const int group = lane % 2 * 4 + i, to_column = first_column + group * 8;
        if (to_column >= p.value_dim) break;
        *reinterpret_cast<uint4*>(to + to_column) =
            *reinterpret_cast<const uint4*>(from + r * PANEL_ROW_BYTES + (group ^ r % 8) * 16);
      }
    }
    __syncwarp();
  }

  // Goes over the chunks of the other warpgroup's gather(): helps to prepare these chunks, and releases their stages
  // unless the segment is resident.
  DEVICE void pass_gathered(const Task& task, Ring& ring) {
    if (task.last || (FEATURE_IS_IDENTITY && task.resident)) return;
    Ring at = ring;
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) {
      barriers().full[at.index].wait(at.parity);
      prepare(task, chunk, stage_of(at), false, true);
      if (!task.resident) release(at);
      at.advance();
    }
    if (!task.resident) ring = at;
  }

  DEVICE void run() {
    each_task([&](const Task& task, Ring& ring) {
      pass_gathered(task, ring);
      read_gates(task, task.chunk);
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) {
        compute_chunk(task, chunk, ring);
        ring.advance();
      }
    });
    if (lane == 0) wait_stores_read();  // the threadgroup's memory must exist until then
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) fused(const __grid_constant__ FusedParams p) {
  Barriers& bars = barriers();
  const unsigned epoch = 2 * *static_cast<volatile unsigned*>(p.counters + 2);
  if (threadIdx.x == 0) {
    constexpr int warps = WARPGROUP / 32;
    for (int stage = 0; stage < STAGES; ++stage) {
      bars.full[stage].init(1);
      bars.empty[stage].init(2 * warps);
    }
    bars.state_written.init(warps);
    bars.state_read.init(warps);
    fence_barrier_init();
  }
  __syncthreads();
  // The warpgroup that copies needs few registers; the other warpgroups take the rest.
  constexpr int few = 24, many = 240;
  const int warpgroup = __reduce_max_sync(~0u, threadIdx.x / WARPGROUP);
  if (warpgroup == 0) {
    take_registers<many>();
    State(p, epoch).run();
  } else if (warpgroup == 1) {
    take_registers<many>();
    Outputs(p).run();
  } else {
    give_registers<few>();
    if (threadIdx.x == 2 * WARPGROUP) produce(p);
  }
}
