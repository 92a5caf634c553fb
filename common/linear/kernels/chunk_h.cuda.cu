// Computes what each chunk adds to the state of its sequence, and the chunk's whole decay: linear.h has the contract.
// The kernel computes S = K^T V on tensor cores of sm_80 and later. In this product K stands for K after the feature
// map, with each row decayed to the chunk's end, and rounded to IN_TYPE again. The key sum z is K^T times a column of
// ones. Sums are f32. If IN_TYPE is F32, each number is split into two numbers of tf32, and three products of tf32
// replace one product of f32 (multiply_add_exactly).
//
// K, V and the gates by channel pass through threadgroup memory in blocks of tokens. The last block comes first,
// because decays are summed from the chunk's end. If the state has more columns than registers hold, the kernel goes
// over the blocks several times. Each such pass computes some of the columns.
//
// Function constants: HEAD_DIM, VALUE_DIM (multiples of 8, at most 256), CHUNK (a multiple of 16, at most 256), GATE,
// NORMALISED, IN_TYPE. Rows of k, v and of gates by channel begin at multiples of 16 bytes.
// Grid: (chunks, heads); 128 threads; ChunkHLayout's threadgroup memory.
//
// Checked: chunk_h[CHUNK=64,GATE=0,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,VALUE_DIM=64] without spills
// Checked: chunk_h[CHUNK=64,GATE=2,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,VALUE_DIM=128] without spills
// Checked: chunk_h[CHUNK=128,GATE=3,HEAD_DIM=128,IN_TYPE=1,NORMALISED=1,VALUE_DIM=64] without spills
// Checked: chunk_h[CHUNK=64,GATE=1,HEAD_DIM=256,IN_TYPE=2,NORMALISED=1,VALUE_DIM=256] without spills
// Checked: chunk_h[CHUNK=64,GATE=2,HEAD_DIM=64,IN_TYPE=0,NORMALISED=0,VALUE_DIM=64] without spills
// Checked: chunk_h[CHUNK=256,GATE=3,HEAD_DIM=256,IN_TYPE=0,NORMALISED=1,VALUE_DIM=256] without spills
#include "common/linear/kernels/phases_tile.h"

namespace {

constexpr ChunkHLayout layout(HEAD_DIM, VALUE_DIM, CHUNK, ELEMENT_BYTES, GATE);
constexpr int BLOCK = layout.block, STAGES = layout.stages;
constexpr int ROW_TILES = layout.row_tiles, COLUMN_UNITS = layout.column_units;
constexpr int K_ROW_BYTES = layout.k_row_bytes, V_ROW_BYTES = layout.v_row_bytes;
constexpr int K_UNITS = layout.k_columns / UNIT, V_UNITS = layout.stage_v_columns / UNIT;
constexpr int SLICES = BLOCK / 16, PAIRS = HEAD_DIM / 2;
// The registers of a multiprocessor must suffice for this number of threadgroups.
constexpr int THREADGROUPS = HEAD_DIM > 128 ? 1 : GATE == GATE_CHANNEL || NORMALISED ? 3 : 4;
constexpr bool WEIGHED = GATE == GATE_HEAD || GATE == GATE_TOKEN;

struct ChunkH {
  const ChunkParams& p;
  const int head = blockIdx.y;
  const ChunkPlace place = place_of_chunk(p, blockIdx.x, CHUNK);
  const long long state = state_index(blockIdx.x, p.heads, head);
  const int blocks = (place.rows + BLOCK - 1) / BLOCK;  // blocks that have tokens
  const int lane = threadIdx.x % WARP, quarter = lane % 4;
  const int row_warp = threadIdx.x / WARP % layout.row_warps, column_warp = threadIdx.x / WARP / layout.row_warps;

  float s[ROW_TILES][2 * COLUMN_UNITS][4];
  float z[NORMALISED ? ROW_TILES : 1][4];

  DEVICE explicit ChunkH(const ChunkParams& params) : p(params) {}

  DEVICE float* weights() const { return reinterpret_cast<float*>(memory + layout.weights); }
  DEVICE float* slice_sums() const { return reinterpret_cast<float*>(memory + layout.slice_sums); }
  DEVICE float* sum() const { return reinterpret_cast<float*>(memory + layout.sum); }

  // A job is one block in one pass. These functions return the pass and the block of a job. The first job of a pass has
  // the last block.
  DEVICE int pass_of(int job) const { return job / blocks; }
  DEVICE int block_of(int job) const { return blocks - 1 - job % blocks; }
  DEVICE unsigned char* stage_of(int job) const {
    return memory + (layout.resident ? job % blocks : job % STAGES) * layout.stage_bytes;
  }
  DEVICE int rows_of_block(int block) const { return place.rows - block * BLOCK; }

  DEVICE void copy(int job) {
    const int block = block_of(job), rows = rows_of_block(block);
    unsigned char* const stage = stage_of(job);
    copy_tile<BLOCK, K_UNITS, K_ROW_BYTES>(stage, row_from(p.k, p.k_strides, place, head, block * BLOCK),
                                           p.k_strides.row * ELEMENT_BYTES, rows, HEAD_DIM / UNIT);
    const int first_column = layout.resident ? 0 : pass_of(job) * layout.pass_columns;
    copy_tile<BLOCK, V_UNITS, V_ROW_BYTES>(
        stage + layout.v, row_from(p.v, p.v_strides, place, head, block * BLOCK) + first_column * ELEMENT_BYTES,
        p.v_strides.row * ELEMENT_BYTES, rows, (static_cast<int>(VALUE_DIM) - first_column) / UNIT);
    if constexpr (GATE == GATE_CHANNEL) {
      copy_tile<BLOCK, HEAD_DIM / 4, HEAD_DIM * 4>(
          stage + layout.gates,
          reinterpret_cast<const char*>(p.gate + row_at(p.gate_strides, place, head, block * BLOCK)),
          p.gate_strides.row * 4, rows, HEAD_DIM / 4);
    }
  }

  // Applies the feature map to K of a block, and decays K to the chunk's end. A barrier stands before each call. After
  // the call all threads may read K.
  DEVICE void map_keys(int job) {
    const int block = block_of(job), rows = rows_of_block(block);
    unsigned char* const k = stage_of(job);
    if constexpr (GATE == GATE_CHANNEL) {
      const auto* const gates = reinterpret_cast<const float*>(k + layout.gates);
      auto* const sums = reinterpret_cast<float2*>(slice_sums());
      auto* const later_decay = reinterpret_cast<float2*>(sum());  // log2 of the decay over the blocks after this one
      for (int i = threadIdx.x; i < SLICES * PAIRS; i += phases_threads) {
        sums[i] = sum_of_slice<HEAD_DIM>(gates, i / PAIRS, i % PAIRS);
      }
      __syncthreads();
      for (int i = threadIdx.x; i < SLICES * PAIRS; i += phases_threads) {
        const int slice = i / PAIRS, pair = i % PAIRS;
        float2 after = later_decay[pair];
        for (int later = SLICES - 1; later > slice; --later) after = after + sums[later * PAIRS + pair];
        decay_slice<HEAD_DIM, K_ROW_BYTES, true>(k, gates, slice, pair, after, rows, p.feature_data);
      }
      __syncthreads();
      for (int pair = threadIdx.x; pair < PAIRS; pair += phases_threads) {
        float2 all = later_decay[pair];
        for (int slice = SLICES - 1; slice >= 0; --slice) all = all + sums[slice * PAIRS + pair];
        later_decay[pair] = all;
      }
    } else if constexpr (WEIGHED || !FEATURE_IS_IDENTITY) {
      const float* const weight = weights() + block * BLOCK;
      map_tile<BLOCK, HEAD_DIM / UNIT, K_ROW_BYTES>(k, rows, p.feature_data,
                                                    [&](int row) { return WEIGHED ? weight[row] : 1.0f; });
      __syncthreads();
    }
  }

  // S += K^T V, for inputs of 16 bits.
  DEVICE void multiply(const unsigned char* stage, int first_unit, bool first_pass) {
    const unsigned k = shared_address(stage) + (lane % 8 + lane / 16 * 8) * K_ROW_BYTES + lane / 8 % 2 * 16;
    const unsigned v = shared_address(stage + layout.v) + lane % 16 * V_ROW_BYTES + lane / 16 * 16;
#pragma unroll(ROW_TILES* COLUMN_UNITS <= 8 ? 4 : 2)
    for (int token = 0; token < BLOCK; token += 16) {
      unsigned a[ROW_TILES][4];
      UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
        if (!has_rows(tile)) continue;
        load_blocks_transposed(a[tile], k + token * K_ROW_BYTES + row_of(tile) * 2);
        if (NORMALISED && first_pass) {
          const unsigned ones = IN_TYPE == BF16 ? 0x3f803f80u : 0x3c003c00u;
          multiply_add<IN_TYPE>(z[tile], a[tile], ones, ones);
        }
      }
      UNROLL for (int unit = 0; unit < COLUMN_UNITS; ++unit) {
        if (!has_columns(first_unit + unit)) continue;
        unsigned b[4];
        load_blocks_transposed(b, v + token * V_ROW_BYTES + (column_in_stage(first_unit) + unit * 16) * 2);
        UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
          if (!has_rows(tile)) continue;
          multiply_add<IN_TYPE>(s[tile][2 * unit], a[tile], b[0], b[1]);
          multiply_add<IN_TYPE>(s[tile][2 * unit + 1], a[tile], b[2], b[3]);
        }
      }
    }
  }

  // S += K^T V, for f32. No instruction loads f32 transposed, so the threads load words.
  DEVICE void multiply_f32(const unsigned char* stage, int first_unit, bool first_pass) {
    const unsigned k = shared_address(stage) + quarter * K_ROW_BYTES + lane / 4 * 4;
    const unsigned v = shared_address(stage + layout.v) + quarter * V_ROW_BYTES + lane / 4 * 4;
#pragma unroll 1
    for (int token = 0; token < BLOCK; token += 8) {
      unsigned a[ROW_TILES][4];
      UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
        if (!has_rows(tile)) continue;
        UNROLL for (int i = 0; i < 4; ++i) {
          a[tile][i] = load_word(k + (token + i / 2 * 4) * K_ROW_BYTES + (row_of(tile) + i % 2 * 8) * 4);
        }
        const unsigned one = 0x3f800000u;
        if (NORMALISED && first_pass) multiply_add_exactly<F32>(z[tile], a[tile], one, one);
      }
      UNROLL for (int group = 0; group < 2 * COLUMN_UNITS; ++group) {
        if (!has_columns(first_unit + group / 2)) continue;
        const unsigned at = v + token * V_ROW_BYTES + (column_in_stage(first_unit) + group * 8) * 4;
        const unsigned b0 = load_word(at), b1 = load_word(at + 4 * V_ROW_BYTES);
        UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
          if (has_rows(tile)) multiply_add_exactly<F32>(s[tile][group], a[tile], b0, b1);
        }
      }
    }
  }

  // row_of() returns the first row of a tile of this warp. has_rows() returns whether the state has this row, after the
  // number of the state's rows is rounded up to whole tiles.
  DEVICE int row_of(int tile) const { return (row_warp * ROW_TILES + tile) * 16; }
  DEVICE bool has_rows(int tile) const { return row_of(tile) < layout.k_columns; }
  DEVICE static bool has_columns(int unit) { return unit * 16 < layout.v_columns; }
  // first_unit() returns the number of the first unit of 16 columns that this warp has in a pass. column_in_stage()
  // returns the column of the stage at which a unit begins.
  DEVICE int first_unit(int pass) const { return (pass * layout.column_warps + column_warp) * COLUMN_UNITS; }
  DEVICE int column_in_stage(int unit) const { return unit * 16 % (layout.resident ? 1 << 20 : layout.pass_columns); }

  DEVICE void clear() {
    UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
      UNROLL for (int i = 0; i < 8 * COLUMN_UNITS; ++i) s[tile][i / 4][i % 4] = 0;
      if constexpr (NORMALISED) {
        UNROLL for (int i = 0; i < 4; ++i) z[tile][i] = 0;
      }
    }
  }

  // Stores the state. If IN_TYPE is F32, elements that are not finite are computed anew (exact_tokens.h).
  DEVICE void store(int first_unit, bool first_pass) {
    UNROLL for (int tile = 0; tile < ROW_TILES; ++tile) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const int row = row_of(tile) + r * 8 + lane / 4;
        if (row >= HEAD_DIM) continue;
        float* const target = p.states + (state * HEAD_DIM + row) * VALUE_DIM;
        UNROLL for (int group = 0; group < 2 * COLUMN_UNITS; ++group) {
          const int column = first_unit * 16 + group * 8 + 2 * quarter;
          if (column >= VALUE_DIM) continue;
          float* const pair = s[tile][group] + 2 * r;
          if constexpr (IN_TYPE == F32) {
            if (!(0 * pair[0] + 0 * pair[1] == 0)) {
              const ExactTokens tokens{p, place.batch, head, place.first};
              UNROLL for (int i = 0; i < 2; ++i) pair[i] = tokens.added(place.rows, row, column + i);
            }
          }
          __stcg(reinterpret_cast<float2*>(target + column), make_float2(pair[0], pair[1]));
        }
        if constexpr (NORMALISED) {
          if (first_pass && column_warp == 0 && quarter == 0) p.key_sums[state * HEAD_DIM + row] = z[tile][2 * r];
        }
      }
    }
  }

  DEVICE void run() {
    if (place.rows == 0) return;
    const int jobs = blocks * layout.passes, copied = layout.resident ? blocks : jobs;
    UNROLL for (int job = 0; job < STAGES; ++job) {
      if (job < copied) copy(job);
      commit_copies();
    }
    if constexpr (WEIGHED) {
      if (threadIdx.x < WARP) {
        const double all = scalar_decays<true>(
            p, place, head, [&](int t, double later) { weights()[t] = exp2_approx(static_cast<float>(later)); });
        if (threadIdx.x == 0) p.decays[state] = static_cast<float>(all) * ln_2;
      }
    }
    if constexpr (GATE == GATE_CHANNEL) {
      for (int d = threadIdx.x; d < HEAD_DIM; d += phases_threads) sum()[d] = 0;
    }
    clear();
#pragma unroll 1
    for (int job = 0; job < jobs; ++job) {
      const bool first_pass = pass_of(job) == 0;
      wait_copies<STAGES - 1>();
      __syncthreads();
      if (!layout.resident || first_pass) map_keys(job);
      if constexpr (IN_TYPE == F32) {
        multiply_f32(stage_of(job), first_unit(pass_of(job)), first_pass);
      } else {
        multiply(stage_of(job), first_unit(pass_of(job)), first_pass);
      }
      if (!layout.resident) {
        __syncthreads();
        if (job + STAGES < jobs) copy(job + STAGES);
      }
      commit_copies();
      if (job % blocks == blocks - 1) {
        store(first_unit(pass_of(job)), first_pass);
        clear();
        if constexpr (GATE == GATE_CHANNEL) {
          __syncthreads();
          if (first_pass) {
            for (int d = threadIdx.x; d < HEAD_DIM; d += phases_threads) {
              p.decays[state * HEAD_DIM + d] = sum()[d] * ln_2;
            }
          }
          if (!layout.resident) {
            __syncthreads();
            for (int d = threadIdx.x; d < HEAD_DIM; d += phases_threads) sum()[d] = 0;
          }
        }
      }
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(phases_threads, THREADGROUPS)
    chunk_h(const __grid_constant__ ChunkParams p) {
  ChunkH(p).run();
}
