// Linear attention in one pass: the state stays in threadgroup memory. If sequences and heads do not fill the device, a
// sequence is cut into spans of chunks. Each span except the last first publishes the sum that it adds to the state.
// Then each span computes the state before its first chunk from what earlier spans have published (look_back.h).
// Without CAUSAL a sequence is one span. This span first adds all tokens to the state, and then computes outputs.
//
// Threadgroup memory: StepsLayout. Grid: (sequences * spans, heads).
#include "common/linear/kernels/look_back.h"
#include "common/linear/kernels/step_outputs.h"

extern "C" void fused(const SpanParams* params, const Threadgroup* group) {
  const SpanParams& p = *params;
  auto place = static_cast<int>(group->index[0]);
  const auto head = static_cast<int>(group->index[1]);
  if (p.spans > 1) place = static_cast<int>(__atomic_fetch_add(p.tickets + head, 1u, __ATOMIC_RELAXED));
  const int sequence = place / p.spans, span = place % p.spans;
  const int span_rows = p.span_chunks * CHUNK;
  const SequenceRows rows = rows_of_sequence(p, sequence, CHUNK);
  const auto has = [&](int of) INLINE_LAMBDA { return of == 0 || (of < p.spans && of * span_rows < rows.rows); };
  if (!has(span)) return;
  const bool last = !has(span + 1);
  const int begin = rows.first + span * span_rows;
  const int end = rows.first + smaller((span + 1) * span_rows, rows.rows);

  OutputSteps steps(p, *group, rows.batch, head);
  const StateRows own{steps.state, steps.key_sum, VALUES};
  const Span<HEAD_DIM> looking{p, sequence, span, head, 0, 0, 1};
  const auto add_all = [&]() INLINE_LAMBDA {
    for_steps(begin, end, [&](int first, int count) INLINE_LAMBDA { steps.add(first, count); });
  };
  if (!last) {
    steps.clear();
    add_all();
    looking.say_adds(own, steps.log_decays());
  }
  if (p.spans > 1) {
    steps.clear();
    looking.look_back(own, steps.prefix);
  } else {
    const long long index = state_index(sequence, p.heads, head);
    steps.read(p.initial_state ? p.initial_state + index * HEAD_DIM * VALUE_DIM : nullptr,
               p.initial_key_sum ? p.initial_key_sum + index * HEAD_DIM : nullptr);
  }
  if (!CAUSAL) add_all();
  for_steps(begin, end, [&](int first, int count) INLINE_LAMBDA {
    steps.run(first, count);
    if (CAUSAL) steps.update(count);
  });
  if (last) {
    const long long index = state_index(sequence, p.heads, head);
    steps.write(p.final_state ? p.final_state + index * HEAD_DIM * VALUE_DIM : nullptr,
                p.final_key_sum ? p.final_key_sum + index * HEAD_DIM : nullptr);
  }
}
