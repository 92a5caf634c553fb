#include "proto7_variants/rotary_case.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "common/base/parallel.h"
#include "common/cases/compare_rows.h"
#include "common/cases/reference.h"

namespace attn {
namespace {

constexpr int64_t rows_checked = 4096;

Tensor rotated(const Tensor& tensor, const RopeConfig& config, int64_t first_position) {
  const std::vector<int> offsets(static_cast<size_t>(tensor.batch), static_cast<int>(first_position));
  const std::vector<double> values = reference_rope(config, tensor, offsets);
  Tensor rotated = tensor;
  parallel_for(tensor.batch * tensor.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t s = 0; s < tensor.seq; ++s) {
        const std::span row(values.data() + (head * tensor.seq + s) * tensor.dim, static_cast<size_t>(tensor.dim));
        rotated.store(tensor.offset(head / tensor.heads, head % tensor.heads, s, 0), row);
      }
    }
  });
  return rotated;
}

AttentionInputs rotated(const FlashInputs& raw, const Rotary& rotary) {
  const AttentionShape& shape = raw.config().shape;
  return {rotated(raw.q(), rotary.config, rotary.position + shape.kv_len - shape.q_len),
          rotated(raw.k(), rotary.config, rotary.position), raw.v()};
}

// Values of `wanted` were rounded from double, values of `buffer` from f32. Two such values may differ by a unit in the
// last place.
Check check_rotated(const Buffer& buffer, const Tensor& wanted, const char* name) {
  Tensor got = wanted;
  buffer.download(got.data.data(), got.bytes());
  const AttentionShape shape{.batch = wanted.batch,
                             .q_heads = wanted.heads,
                             .kv_heads = wanted.heads,
                             .q_len = wanted.seq,
                             .kv_len = wanted.seq,
                             .head_dim = wanted.dim};
  const bool all = wanted.batch * wanted.heads * wanted.seq <= rows_checked;
  const std::vector<RowIndex> rows = all ? all_rows(shape) : sample_rows(shape, rows_checked, 0);
  const auto dim = static_cast<size_t>(wanted.dim);
  const double unit = wanted.dtype == DType::f32 ? 0x1p-23 : wanted.dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  const auto load = [](const Tensor& tensor) {
    return [&tensor](const RowIndex& row, std::span<double> numbers) {
      tensor.load(tensor.offset(row.batch, row.head, row.q, 0), numbers);
    };
  };
  std::vector<double> want(rows.size() * dim), allowed(want.size());
  for (size_t i = 0; i < rows.size(); ++i) load(wanted)(rows[i], std::span(want).subspan(i * dim, dim));
  for (size_t i = 0; i < want.size(); ++i) allowed[i] = 4e-6 + unit * std::abs(want[i]);
  return compare_rows(rows, dim, load(got), want, allowed, [&](const RowIndex& row) {
    return fmt::format("rotated {} of batch {}, head {}, row {}", name, row.batch, row.head, row.q);
  });
}

}  // namespace

std::vector<RotaryStep> rotary_steps(const Rotary& rotary, const FlashConfig& config) {
  const AttentionShape& s = config.shape;
  const auto step = [&](int64_t q_heads, int64_t kv_heads, int64_t rows, int64_t first, const char* phase) {
    return RotaryStep{{.batch = s.batch,
                       .q_heads = q_heads,
                       .kv_heads = kv_heads,
                       .rows = rows,
                       .dtype = config.dtype,
                       .table_positions = rotary.table ? first + rows : 0},
                      first,
                      phase};
  };
  if (!rotary.launches()) return {};
  const RotaryStep keys = step(0, s.kv_heads, s.kv_len, rotary.position, "rope_k");
  if (rotary.by == "query") return {keys};
  if (s.q_len == s.kv_len) return {step(s.q_heads, s.kv_heads, s.q_len, rotary.position, "rope")};
  return {step(s.q_heads, 0, s.q_len, rotary.position + s.kv_len - s.q_len, "rope_q"), keys};
}

Plan rotary_plan(const Rotary& rotary, const FlashConfig& config, const DeviceInfo& device) {
  Plan all{.work = {.bound = Bound::memory, .dtype = config.dtype}};
  for (const RotaryStep& step : rotary_steps(rotary, config)) {
    Plan plan = rope_plan(rotary.config, step.shape, device);
    if (!plan.unable.empty()) return plan;
    plan.launches.front().phase = step.phase;
    all.launches.push_back(std::move(plan.launches.front()));
    all.work.flops += plan.work.flops;
    all.work.bytes += plan.work.bytes;
  }
  return all;
}

RotaryInputs::RotaryInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input,
                           const Rotary& how)
    : rotary(how), raw(device, config, seed, input), rotated(device, config, seed, attn::rotated(raw, how)) {}

RotaryLaunches::RotaryLaunches(Device& device, PipelineCache& pipelines, std::shared_ptr<RotaryInputs> inputs,
                               Rotary rotary, const Plan& plan)
    : inputs_(std::move(inputs)), rotary_(std::move(rotary)) {
  const FlashConfig& config = inputs_->raw.config();
  for (RotaryStep& step : rotary_steps(rotary_, config)) {
    const std::vector<int> offsets(static_cast<size_t>(config.shape.batch), static_cast<int>(step.first_position));
    RopeLaunch launch(device, pipelines, rotary_.config, step.shape, plan, step.phase);
    steps_.push_back({std::move(step), std::move(launch), uploaded(device, offsets)});
  }
}

void RotaryLaunches::encode(CommandEncoder& encoder) const {
  FlashInputs &raw = inputs_->raw, &rotated = inputs_->rotated;
  const Strides q = raw.q().strides(), k = raw.k().strides();
  for (const Step& step : steps_) {
    step.launch.encode(encoder, {.q = rotary_.in_place ? rotated.q_buffer().data() : raw.q_buffer().data(),
                                 .k = rotary_.in_place ? rotated.k_buffer().data() : raw.k_buffer().data(),
                                 .q_out = rotated.q_buffer().data(),
                                 .k_out = rotated.k_buffer().data(),
                                 .q_strides = q,
                                 .k_strides = k,
                                 .q_out_strides = q,
                                 .k_out_strides = k,
                                 .offsets = static_cast<const int*>(step.offsets.data())});
  }
}

void RotaryLaunches::poison() {
  FlashInputs &raw = inputs_->raw, &rotated = inputs_->rotated;
  for (const Step& step : steps_) {
    for (const auto& [heads, from, to] : {std::tuple(step.what.shape.q_heads, &raw.q(), &rotated.q_buffer()),
                                          {step.what.shape.kv_heads, &raw.k(), &rotated.k_buffer()}}) {
      if (heads == 0) continue;
      if (rotary_.in_place) {
        to->upload(from->data.data(), from->bytes());
      } else {
        to->poison();
      }
    }
  }
}

Check RotaryLaunches::check() {
  FlashInputs &raw = inputs_->raw, &rotated = inputs_->rotated;
  Check check;
  for (const Step& step : steps_) {
    if (step.what.shape.q_heads > 0) check.merge(check_rotated(rotated.q_buffer(), rotated.q(), "q"));
    if (step.what.shape.kv_heads > 0) check.merge(check_rotated(rotated.k_buffer(), rotated.k(), "k"));
  }
  check_guards(check, {&raw.q_buffer(), &raw.k_buffer(), &rotated.q_buffer(), &rotated.k_buffer()});
  return check;
}

Tensor RotaryLaunches::rotated_q() const {
  Tensor q = inputs_->rotated.q();
  inputs_->rotated.q_buffer().download(q.data.data(), q.bytes());
  return q;
}

Buffer& RotaryLaunches::q() { return rotary_.by == "before" ? inputs_->rotated.q_buffer() : inputs_->raw.q_buffer(); }
Buffer& RotaryLaunches::k() { return rotary_.launches() ? inputs_->rotated.k_buffer() : inputs_->raw.k_buffer(); }

}  // namespace attn
