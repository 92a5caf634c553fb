// Scans compute the state before each chunk from what the chunks add; linear.h has the contract. A threadgroup has
// SCAN_ROWS rows of a head's state over a span of chunks. A thread has four columns of one row, or one row of z.
// Neighbouring threads read and write neighbouring addresses. A thread loads the next chunks before it works on the
// loaded chunks.
//
// Two scans:
//   scan           in passes; PASS is the pass of the launch. With one span the state takes up all chunks of its
//                  sequence in turn. If there are few heads, several spans fill the device. If CAUSAL, the passes then
//                  read twice what each chunk adds
//   scan_lookback  (with DELAY in place of PASS) in one pass, by decoupled look-back (Merrill and Garland 2016). Each
//                  span of a sequence, except the first and the last, first publishes its sum: what the span adds to
//                  the state. Then the span combines the published sums of the spans before it, back to the nearest
//                  span that has published the state after itself. Two successive spans with the sums S1 and S2, and
//                  with the logarithms d1 and d2 of their decays, together have the sum exp(d2) S1 + S2 and the
//                  logarithm d1 + d2. Registers hold the first held_chunks chunks of a span. A span that publishes its
//                  sum reads its other chunks twice.
// With look-back a threadgroup draws a ticket from a counter, and the ticket gives the number of its span. So all spans
// for which the threadgroup waits have begun. A flag also has the number of the launch that set it (Board), so no flag
// has to be cleared between launches. DELAY: nanoseconds that every second span waits before it sets a flag.
//
// Function constants: HEAD_DIM, VALUE_DIM (multiples of 8, at most 256), CHUNK, GATE, NORMALISED, CAUSAL, SCAN_ROWS,
// PASS or DELAY. Grid: (sequences * spans, heads, HEAD_DIM / SCAN_ROWS), with PASS_STARTS (sequences, ...);
// cuda_scan_threads() threads. SpanParams::flags and tickets (three words) are 0 before the first launch.
//
// Checked: scan[CAUSAL=1,CHUNK=64,GATE=0,HEAD_DIM=64,NORMALISED=0,PASS=3,SCAN_ROWS=8,VALUE_DIM=64] without spills
// Checked: scan[CAUSAL=1,CHUNK=64,GATE=3,HEAD_DIM=128,NORMALISED=1,PASS=1,SCAN_ROWS=4,VALUE_DIM=128] without spills
// Checked: scan[CAUSAL=0,CHUNK=64,GATE=0,HEAD_DIM=72,NORMALISED=1,PASS=2,SCAN_ROWS=6,VALUE_DIM=80] without spills
// Checked: scan_lookback[CAUSAL=1,CHUNK=64,DELAY=0,GATE=0,HEAD_DIM=64,NORMALISED=0,SCAN_ROWS=8,VALUE_DIM=64] without spills
// Checked: scan_lookback[CAUSAL=1,CHUNK=64,DELAY=1000,GATE=3,HEAD_DIM=256,NORMALISED=1,SCAN_ROWS=2,VALUE_DIM=256] without spills
#ifdef DELAY_VALUE
#define LOOKS_BACK 1
#else
#define LOOKS_BACK 0
#endif
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "common/kernel/grid.h"
#include "common/linear/kernels/phases_layout.h"

namespace {

constexpr int THREADS = cuda_scan_threads(SCAN_ROWS, VALUE_DIM, NORMALISED);
constexpr int COLUMNS = VALUE_DIM / 4;  // of four floats
constexpr int OF_STATE = SCAN_ROWS * COLUMNS, ITEMS = OF_STATE + (NORMALISED ? int{SCAN_ROWS} : 0);
constexpr int AT_ONCE = held_chunks;  // chunks that a thread loads at once
static_assert(HEAD_DIM % SCAN_ROWS == 0);

/// A thread's part of a state, or of the sum that a chunk or span adds to the state.
struct Value {
  float x[4];

  /// x = x * decay + added.
  DEVICE void go_over(float decay, const Value& added) {
    UNROLL for (int i = 0; i < 4; ++i) x[i] = x[i] * decay + added.x[i];
  }
};

/// A thread's place: a row and four columns of S, or with `of_sum` a row of z. If `there` is false, the thread has no
/// place.
struct Item {
  const SpanParams& p;
  const int sequence, head, row;  // row: in the head's state
  const int column;
  const bool there, of_sum;
  const SequenceRows rows;

  DEVICE Item(const SpanParams& params, int of_sequence, int of_head, int slice)
      : p(params),
        sequence(of_sequence),
        head(of_head),
        row(slice * SCAN_ROWS + (thread() < OF_STATE ? thread() / COLUMNS : thread() - OF_STATE)),
        column(thread() % COLUMNS * 4),
        there(thread() < ITEMS),
        of_sum(NORMALISED && thread() >= OF_STATE),
        rows(rows_of_sequence(params, of_sequence, CHUNK)) {}

  DEVICE static int thread() { return threadIdx.x; }

  /// Returns the index of the row in a tensor [numbers, heads, HEAD_DIM].
  DEVICE long long at(long long number) const { return state_index(number, p.heads, head) * HEAD_DIM + row; }

  // Loads past the L1 cache, because other threadgroups may have written the data in this launch.
  DEVICE Value load(const float* states, const float* sums, long long number) const {
    if (!there) return {};
    if (of_sum) return {__ldcg(sums + at(number)), 0, 0, 0};
    const float4 words = __ldcg(reinterpret_cast<const float4*>(states + at(number) * VALUE_DIM + column));
    return {words.x, words.y, words.z, words.w};
  }
  DEVICE void store(float* states, float* sums, long long number, const Value& value) const {
    if (!there) return;
    if (of_sum) {
      sums[at(number)] = value.x[0];
    } else {
      __stcg(reinterpret_cast<float4*>(states + at(number) * VALUE_DIM + column),
             make_float4(value.x[0], value.x[1], value.x[2], value.x[3]));
    }
  }

  // ---- chunks and spans

  DEVICE long long span_number(int span) const { return static_cast<long long>(sequence) * p.spans + span; }
  DEVICE int first_of(int span) const { return span * p.span_chunks; }
  DEVICE int end_of(int span) const { return min(first_of(span) + p.span_chunks, rows.chunks); }
  DEVICE bool has(int span) const { return span == 0 || (span < p.spans && first_of(span) < rows.chunks); }

  DEVICE Value load_chunk(int chunk) const {
    return load(p.states, p.key_sums, static_cast<long long>(rows.first_chunk) + chunk);
  }
  /// Returns the logarithm of the decay of this row over a chunk.
  DEVICE float chunk_decay(int chunk) const {
    if (GATE == GATE_NONE || !there) return 0;
    const long long number = static_cast<long long>(rows.first_chunk) + chunk;
    return GATE == GATE_CHANNEL ? p.decays[at(number)] : p.decays[state_index(number, p.heads, head)];
  }
  DEVICE Value load_span(int span) const { return load(p.span_states, p.span_key_sums, span_number(span)); }
  DEVICE float span_decay(int span) const {
    if (GATE == GATE_NONE || !there) return 0;
    return __ldcg(p.span_decays + at(span_number(span)));
  }
  DEVICE void store_span(int span, const Value& added, float decay) const {
    store(p.span_states, p.span_key_sums, span_number(span), added);
    if (GATE != GATE_NONE && there && !of_sum && column == 0) p.span_decays[at(span_number(span))] = decay;
  }

  DEVICE Value initial() const {
    const bool given = of_sum ? p.initial_key_sum != nullptr : p.initial_state != nullptr;
    return given ? load(p.initial_state, p.initial_key_sum, sequence) : Value{};
  }
  DEVICE void finish(const Value& state) const {
    const bool wanted = of_sum ? p.final_key_sum != nullptr : p.final_state != nullptr;
    if (wanted) store(p.final_state, p.final_key_sum, sequence, state);
    if (!CAUSAL && rows.chunks > 0) store(p.states, p.key_sums, rows.first_chunk, state);
  }
};

DEVICE float decay_of(float log) { return GATE == GATE_NONE ? 1.0f : exp2_approx(log * log2_e); }

/// Chunks or spans that have been loaded.
struct Batch {
  Value added[AT_ONCE];
  float decays[AT_ONCE];  // logarithms

  /// Loads chunks or spans from `first` to before `end`. Entries of the batch from `end` on add nothing.
  template <bool SPANS>
  DEVICE static Batch of(const Item& item, int first, int end) {
    Batch batch{};
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i >= end) continue;
      batch.added[i] = SPANS ? item.load_span(first + i) : item.load_chunk(first + i);
      batch.decays[i] = SPANS ? item.span_decay(first + i) : item.chunk_decay(first + i);
    }
    return batch;
  }

  /// The state takes up the batch. With STARTS the state before each chunk or span replaces what the chunk or span
  /// adds.
  template <bool SPANS, bool STARTS>
  DEVICE void go_over(const Item& item, int first, int end, Value& state, float& decay) const {
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      if (STARTS && first + i < end) {
        if (SPANS) {
          item.store(item.p.span_states, item.p.span_key_sums, item.span_number(first + i), state);
        } else {
          item.store(item.p.states, item.p.key_sums, static_cast<long long>(item.rows.first_chunk) + first + i, state);
        }
      }
      state.go_over(decay_of(decays[i]), added[i]);
      decay += decays[i];
    }
  }
};

/// The state takes up chunks or spans from `first` to before `end`. Adds the logarithms of their decays to `decay`.
template <bool SPANS, bool STARTS>
DEVICE void go_over_all(const Item& item, int first, int end, Value& state, float& decay) {
  Batch now = Batch::of<SPANS>(item, first, end);
#pragma unroll 1
  for (; first < end; first += AT_ONCE) {
    const Batch next = Batch::of<SPANS>(item, first + AT_ONCE, end);
    now.go_over<SPANS, STARTS>(item, first, end, state, decay);
    now = next;
  }
}

}  // namespace

#if LOOKS_BACK

namespace {

/// The memory through which threadgroups communicate. `tickets` has three words: the next ticket, the number of
/// threadgroups that are done, and the number of earlier launches. A flag is 4 * (earlier launches) + SpanFlag; flags
/// of earlier launches count as silent.
struct Board {
  const SpanParams& p;
  const unsigned all = gridDim.x * gridDim.y * gridDim.z;
  unsigned ticket, launches;

  DEVICE explicit Board(const SpanParams& params) : p(params) {
    __shared__ unsigned got[2];
    if (threadIdx.x == 0) {
      got[0] = atomicAdd(p.tickets, 1u);
      got[1] = *static_cast<volatile unsigned*>(p.tickets + 2);
    }
    __syncthreads();
    ticket = got[0];
    launches = got[1];
  }

  // The flags of the spans of one slice are contiguous.
  DEVICE unsigned* flag(const Item& item, int slice, int span) const {
    const long long chain = (static_cast<long long>(item.sequence) * gridDim.y + item.head) * gridDim.z + slice;
    return p.flags + chain * p.spans + span;
  }

  /// Sets the span's flag after all threads' stores. All threads call this function.
  DEVICE void say(const Item& item, int slice, int span, SpanFlag what) const {
    if (DELAY > 0 && span % 2 == 1) __nanosleep(DELAY);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) store_flag(flag(item, slice, span), 4 * launches + static_cast<unsigned>(what));
  }

  /// Returns the flag of a span.
  DEVICE SpanFlag hear(const Item& item, int slice, int span) const {
    const int said = static_cast<int>(load_flag(flag(item, slice, span)) - 4 * launches);
    return said > 0 ? static_cast<SpanFlag>(said) : SPAN_SILENT;
  }

  /// The last threadgroup that calls leave() prepares the board for the next launch.
  DEVICE void leave() const {
    if (threadIdx.x != 0) return;
    if (atomicAdd(p.tickets + 1, 1u) != all - 1) return;
    p.tickets[0] = 0;
    p.tickets[1] = 0;
    p.tickets[2] = launches + 1;
  }
};

/// Computes the state before a span from what the spans before it have published, 32 spans at a time.
DEVICE Value look_back(const Board& board, const Item& item, int slice, int span) {
  // heard[0]: how many spans directly before `end` have published only what they add. heard[1]: whether the span before
  // these spans has published the state after itself.
  __shared__ int heard[2];
  Value state{};
  float decay = 0;  // logarithm of the decay of the spans that are summed up
  for (int end = span; end > 0;) {
    if (threadIdx.x < WARP) {
      const int lane = threadIdx.x, other = end - 1 - lane;
      int adding = 0;
      bool knows = false;
      do {  // waits until the nearest span has published something
        const SpanFlag said = other >= 0 ? board.hear(item, slice, other) : SPAN_SILENT;
        const unsigned after = __ballot_sync(~0u, said == SPAN_AFTER), silent = __ballot_sync(~0u, said == SPAN_SILENT);
        const int first_after = after == 0 ? WARP : __ffs(after) - 1;
        const int first_silent = silent == 0 ? WARP : __ffs(silent) - 1;
        knows = first_after < first_silent;
        adding = min(first_after, first_silent);
      } while (adding == 0 && !knows);
      if (lane == 0) {
        heard[0] = adding;
        heard[1] = knows;
      }
    }
    __syncthreads();
    const int adding = heard[0];
    const bool knows = heard[1] != 0;
#pragma unroll 4
    for (int i = 1; i <= adding; ++i) {
      const Value added = item.load_span(end - i);
      const float its = item.span_decay(end - i), factor = decay_of(decay);
      UNROLL for (int j = 0; j < 4; ++j) state.x[j] += factor * added.x[j];
      decay += its;
    }
    end -= adding;
    if (knows) {
      const Value before = item.load(item.p.states_after, item.p.key_sums_after, item.span_number(end - 1));
      const float factor = decay_of(decay);
      UNROLL for (int j = 0; j < 4; ++j) state.x[j] += factor * before.x[j];
      return state;
    }
    __syncthreads();
  }
  const Value initial = item.initial();
  const float factor = decay_of(decay);
  UNROLL for (int j = 0; j < 4; ++j) state.x[j] += factor * initial.x[j];
  return state;
}

DEVICE void run_span(const Board* board, const Item& item, int slice, int span) {
  if (!item.has(span)) return;
  const int first = item.first_of(span), end = item.end_of(span), held_end = min(first + held_chunks, end);
  const bool last = !item.has(span + 1);
  const Batch held = Batch::of<false>(item, first, end);
  if (span > 0 && !last) {
    Value added{};
    float decay = 0;
    held.go_over<false, false>(item, first, held_end, added, decay);
    go_over_all<false, false>(item, held_end, end, added, decay);
    item.store_span(span, added, decay);
    board->say(item, slice, span, SPAN_ADDS);
  }
  Value state = span > 0 ? look_back(*board, item, slice, span) : item.initial();
  float decay = 0;
  held.go_over<false, CAUSAL>(item, first, held_end, state, decay);
  go_over_all<false, CAUSAL>(item, held_end, end, state, decay);
  if (last) {
    item.finish(state);
  } else {
    item.store(item.p.states_after, item.p.key_sums_after, item.span_number(span), state);
    board->say(item, slice, span, SPAN_AFTER);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2) scan_lookback(const __grid_constant__ SpanParams p) {
  if (p.spans == 1) {
    run_span(nullptr, Item(p, blockIdx.x, blockIdx.y, blockIdx.z), blockIdx.z, 0);
    return;
  }
  const Board board(p);
  // From one ticket to the next the slice changes fastest, then the head, then the sequence, then the span.
  const unsigned chains = board.all / p.spans, chain = board.ticket % chains;
  const int slice = chain % gridDim.z, head = chain / gridDim.z % gridDim.y, sequence = chain / gridDim.z / gridDim.y;
  run_span(&board, Item(p, sequence, head, slice), slice, board.ticket / chains);
  board.leave();
}

#else

extern "C" __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ SpanParams p) {
  const int sequence = PASS == PASS_STARTS ? blockIdx.x : blockIdx.x / p.spans, span = blockIdx.x - sequence * p.spans;
  const Item item(p, sequence, blockIdx.y, blockIdx.z);
  float decay = 0;
  if constexpr (PASS == PASS_STARTS) {
    Value state = item.initial();
    const int spans = max((item.rows.chunks + p.span_chunks - 1) / p.span_chunks, 1);
    go_over_all<true, CAUSAL>(item, 0, spans, state, decay);
    item.finish(state);
  } else {
    if (!item.has(span)) return;
    const int first = item.first_of(span), end = item.end_of(span);
    if constexpr (PASS == PASS_TOTALS) {
      Value added{};
      go_over_all<false, false>(item, first, end, added, decay);
      item.store_span(span, added, decay);
    } else {
      Value state = p.spans > 1 ? item.load_span(span) : item.initial();
      go_over_all<false, CAUSAL>(item, first, end, state, decay);
      if (p.spans == 1) item.finish(state);
    }
  }
}

#endif
