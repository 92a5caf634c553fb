#include "proto6_linear/problem.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "common/attention/launch.h"
#include "common/base/error.h"
#include "common/base/stopwatch.h"
#include "common/cases/compare_rows.h"
#include "common/cases/feature_oracle.h"
#include "common/cases/input_pool.h"
#include "common/cases/inputs.h"
#include "common/cases/problem.h"
#include "common/cases/user_functions.h"

namespace attn {
namespace {

/// The lengths of ragged sequences are drawn with this seed in every run.
constexpr uint64_t drawn_by = 1;
/// softmax_distance() compares fewer than 2 * most_compared rows, of sequences of at most longest_compared tokens.
constexpr int64_t most_compared = 32, longest_compared = 1 << 17;

float* floats_of(const Buffer& buffer) { return buffer.bytes() > 0 ? static_cast<float*>(buffer.data()) : nullptr; }

int64_t rows_of_tensor(const LinearConfig& config) { return config.ragged ? config.all_rows : config.tokens; }
int64_t batches(const LinearConfig& config) { return config.ragged ? 1 : config.sequences; }

Strides gate_strides(const LinearConfig& config) {
  const int64_t width = config.gate == GATE_CHANNEL ? config.head_dim : 1, rows = rows_of_tensor(config);
  return {config.heads * rows * width, rows * width, width};
}

/// Returns the logarithms of decays. The usual decays by head are RetNet's, from 1 - 2^-5 to 1 - 2^-12. The usual decay
/// by token is sigmoid(x + 3) for a random x. The usual decay by channel is sigmoid(x)^(1/16), as in GLA: the root
/// makes the state remember 16 times as many tokens as sigmoid(x) does. The logarithms of weak and strong decays are
/// multiples; mixed ones are the depths at which kernels that divide by decays overflow, and others.
std::vector<float> random_gate(const LinearCase& config, uint64_t seed) {
  const LinearConfig& linear = config.linear;
  if (linear.gate == GATE_NONE) return {};
  const double factor = config.decay == "weak" ? 1e-6 : config.decay == "strong" ? 300 : 1;
  constexpr float depths[] = {0, -1, -5, -7, -20, -26};
  std::vector<float> gate;
  if (linear.gate == GATE_HEAD) {
    for (int64_t h = 0; h < linear.heads; ++h) {
      const double exponent =
          5 + 7.0 * static_cast<double>(h) / static_cast<double>(std::max<int64_t>(linear.heads - 1, 1));
      gate.push_back(config.decay == "mixed" ? depths[static_cast<size_t>(h) % std::size(depths)]
                                             : static_cast<float>(factor * std::log1p(-std::exp2(-exponent))));
    }
    return gate;
  }
  const int64_t width = linear.gate == GATE_CHANNEL ? linear.head_dim : 1;
  const Tensor drawn =
      random_tensor(batches(linear), linear.heads, rows_of_tensor(linear), width, DType::f32, Layout::bhsd, seed, 3);
  gate.resize(static_cast<size_t>(drawn.count()));
  const double shift = linear.gate == GATE_CHANNEL ? 0 : 3, share = linear.gate == GATE_CHANNEL ? 1.0 / 16 : 1;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double normal = drawn.load(static_cast<int64_t>(i)), x = normal + shift;
    gate[i] = static_cast<float>(-factor * share * std::log1p(std::exp(-x)));
    // A third of the decays is 1, so that some terms last for several tokens.
    if (config.decay == "mixed") gate[i] = depths[std::min<size_t>(static_cast<size_t>(std::abs(normal) / 0.4), 5)];
  }
  return gate;
}

AttentionShape attention_shape(const LinearConfig& linear) {
  return {.batch = linear.sequences,
          .q_heads = linear.heads,
          .kv_heads = linear.heads,
          .q_len = linear.tokens,
          .kv_len = linear.tokens,
          .head_dim = linear.head_dim,
          .causal = linear.causal};
}

double median_of(std::vector<double> values) { return values.empty() ? 0 : median(std::move(values)); }

}  // namespace

LinearCase LinearCase::from(const Case& config, const Files& files) {
  LinearCase one;
  LinearConfig& linear = one.linear;
  one.softmax = config.text("variant") == "softmax";
  linear.variant = config.text("variant");
  linear.scan = config.text("scan");
  linear.sequences = config.integer("batch");
  linear.heads = config.integer("heads");
  linear.tokens = config.integer("q_len");
  linear.head_dim = config.integer("head_dim");
  linear.value_dim = config.integer("value_dim");
  linear.dtype = parse_dtype(config.text("dtype"));
  linear.out_dtype = parse_dtype(config.text("out_dtype"));
  linear.chunk = config.integer("chunk");
  linear.causal = config.integer("causal") != 0;
  linear.gate = parse_gate(config.text("gate"));
  linear.normalised = config.integer("normalised") != 0;
  const std::string& feature = config.text("feature");
  linear.feature = feature.starts_with("file-")
                       ? user_feature(function_of_case(FunctionKind::feature, "feature", feature, feature_option,
                                                       file_of(files, feature_option)))
                       : named_feature(feature);
  linear.segments = config.integer("segments");
  linear.ragged = config.text("lengths") == "ragged";
  one.layout = parse_layout(config.text("layout"));
  one.with_state = config.integer("state") != 0;
  const std::vector<int64_t> lengths = one.sequence_lengths();
  linear.all_rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return one;
}

std::vector<int64_t> LinearCase::sequence_lengths() const {
  std::vector<int64_t> lengths(static_cast<size_t>(linear.sequences), linear.tokens);
  if (!linear.ragged) return lengths;
  std::mt19937_64 random(drawn_by);
  for (size_t s = 1; s < lengths.size(); ++s) {
    lengths[s] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(linear.tokens));
  }
  if (lengths.size() > 1) lengths[lengths.size() / 2] = 0;
  return lengths;
}

bool LinearCase::same_inputs(const LinearCase& other) const {
  const LinearConfig &a = linear, &b = other.linear;
  return a.sequences == b.sequences && a.heads == b.heads && a.tokens == b.tokens && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim && a.dtype == b.dtype && a.out_dtype == b.out_dtype && a.causal == b.causal &&
         a.gate == b.gate && a.normalised == b.normalised && a.feature.name == b.feature.name &&
         a.feature.text == b.feature.text && a.ragged == b.ragged && layout == other.layout &&
         with_state == other.with_state && decay == other.decay;
}

FlashConfig softmax_attention(const LinearCase& one, const DeviceInfo& device) {
  FlashConfig flash{.variant = "naive",
                    .shape = attention_shape(one.linear),
                    .dtype = one.linear.dtype,
                    .out_dtype = one.linear.out_dtype,
                    .layout = one.layout};
  for (const char* variant : {"wgmma", "mma_sync", "tuned"}) {
    if (!variant_unable(variant, device).empty()) continue;
    FlashConfig tried = flash;
    tried.variant = variant;
    choose_tile(tried, device);
    if (!skip_reason(attention_plan(tried, device), device)) return tried;
  }
  return flash;
}

Plan linear_plan(const LinearCase& one, const DeviceInfo& device) {
  if (one.softmax) {
    if (one.linear.value_dim != one.linear.head_dim || one.linear.ragged) {
      return {.unable =
                  "variant softmax: value_dim must be equal to head_dim, and all sequences must have equal lengths"};
    }
    return attention_plan(one.flash, device);
  }
  if (one.linear.normalised && one.linear.feature.name == "identity") {
    return {.unable = "normalised 1: with feature identity the divisor can have either sign, and may be nearly 0"};
  }
  if (one.linear.feature.user) {
    if (std::string reason = function_unable(FunctionKind::feature, device); !reason.empty()) return {.unable = reason};
  }
  return linear_plan(one.linear, device, one.with_state);
}

CasePlan linear_case_plan(const Case& config, const Setting& setting) {
  LinearCase one = LinearCase::from(config, setting.files);
  if (one.softmax) one.flash = softmax_attention(one, setting.device);
  CasePlan plan{linear_plan(one, setting.device), one};
  const LinearConfig& linear = one.linear;
  const double numbers = linear.variant == "phases" ? static_cast<double>(linear.chunk_numbers() * linear.heads) : 0;
  const double states = 4 * numbers * static_cast<double>(linear.state_elements());  // in bytes
  plan.memory = {plan.work.bytes + states, plan.work.bytes};
  return plan;
}

LinearInputs random_inputs(const LinearCase& config, uint64_t seed) {
  const LinearConfig& linear = config.linear;
  const auto random = [&](int64_t width, uint64_t stream) {
    return random_tensor(batches(linear), linear.heads, rows_of_tensor(linear), width, linear.dtype, config.layout,
                         seed, stream);
  };
  LinearInputs inputs{.q = random(linear.head_dim, 0),
                      .k = random(linear.head_dim, 1),
                      .v = random(linear.value_dim, 2),
                      .gate = random_gate(config, seed)};
  if (config.with_state) {
    constexpr double size = 4;
    const auto state = [&](int64_t rows, int64_t width, uint64_t stream, bool positive) {
      const Tensor drawn =
          random_tensor(linear.sequences, linear.heads, rows, width, DType::f32, Layout::bhsd, seed, stream);
      std::vector<float> values(static_cast<size_t>(drawn.count()));
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = drawn.load(static_cast<int64_t>(i));
        values[i] = static_cast<float>(size * (positive ? std::abs(x) : x));
      }
      return values;
    };
    inputs.initial_state = state(linear.head_dim, linear.value_dim, 4, false);
    if (linear.normalised) inputs.initial_key_sum = state(1, linear.head_dim, 5, true);
  }
  if (linear.ragged) {
    inputs.starts.push_back(0);
    for (const int64_t length : config.sequence_lengths())
      inputs.starts.push_back(inputs.starts.back() + static_cast<int>(length));
  }
  return inputs;
}

SharedInputs::SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config_, uint64_t seed_)
    : SharedInputs(device, pipelines, config_, seed_, random_inputs(config_, seed_)) {}

SharedInputs::SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config_, uint64_t seed_,
                           LinearInputs inputs_)
    : config(config_),
      seed(seed_),
      inputs(std::move(inputs_)),
      feature_(double_precision(config_.linear.feature, device, pipelines)) {
  q = uploaded(device, inputs.q.data);
  k = uploaded(device, inputs.k.data);
  v = uploaded(device, inputs.v.data);
  gate = uploaded(device, inputs.gate);
  initial_state = uploaded(device, inputs.initial_state);
  initial_key_sum = uploaded(device, inputs.initial_key_sum);
  starts = uploaded(device, inputs.starts);
}

const LinearReference& SharedInputs::reference(int64_t most_rows) {
  if (!reference_) {
    if (most_rows == 0) most_rows = affordable_rows(config.linear);
    reference_ = reference_linear(config.linear, inputs, feature_, most_rows, seed);
  }
  return *reference_;
}

std::optional<SoftmaxDistance> SharedInputs::softmax_distance() {
  const LinearConfig& linear = config.linear;
  if (linear.value_dim != linear.head_dim || linear.ragged || linear.tokens > longest_compared) return {};
  if (distance_) return *distance_;
  const LinearReference& own = reference();
  const auto dim = static_cast<size_t>(linear.value_dim);
  // Only the later half of a sequence is compared: with a causal mask its rows see many tokens, among which softmax
  // attention can choose.
  std::vector<RowIndex> rows;
  std::vector<size_t> places;
  for (size_t i = 0; i < own.rows.size(); ++i) {
    if (own.rows[i].row >= linear.tokens / 2) places.push_back(i);
  }
  const size_t step = std::max<size_t>(places.size() / static_cast<size_t>(most_compared), 1);
  for (size_t i = 0; i * step < places.size(); ++i) places[i] = places[i * step];
  places.resize((places.size() + step - 1) / step);
  for (const size_t i : places) rows.push_back({own.rows[i].sequence, own.rows[i].head, own.rows[i].row});
  const ReferenceRows softmax = reference_attention(attention_shape(linear), inputs.q, inputs.k, inputs.v, rows);
  SoftmaxDistance distance;
  double difference = 0, size = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    double product = 0, own_size = 0, other_size = 0;
    for (size_t e = 0; e < dim; ++e) {
      const double a = own.o[places[i] * dim + e], b = softmax.o[i * dim + e];
      product += a * b;
      own_size += a * a;
      other_size += b * b;
      difference += (a - b) * (a - b);
    }
    size += other_size;
    if (own_size > 0 && other_size > 0) {
      distance.cosine += product / std::sqrt(own_size * other_size) / static_cast<double>(places.size());
    }
  }
  distance.relative = size > 0 ? std::sqrt(difference / size) : 0;
  distance_ = distance;
  return *distance_;
}

LinearOutputs::LinearOutputs(Device& device, std::shared_ptr<SharedInputs> shared, const LinearCase& config)
    : inputs(std::move(shared)), config_(config) {
  const LinearConfig& linear = config.linear;
  const int64_t rows = batches(linear) * linear.heads * rows_of_tensor(linear);
  o_ = Buffer(device, static_cast<size_t>(rows * linear.value_dim) * size_bytes(linear.out_dtype));
  const auto states = static_cast<size_t>(linear.sequences * linear.heads) * sizeof(float);
  final_state_ = Buffer(device, states * static_cast<size_t>(linear.state_elements()));
  if (linear.normalised) final_key_sum_ = Buffer(device, states * static_cast<size_t>(linear.head_dim));
}

LinearTensors LinearOutputs::tensors() const {
  LinearTensors tensors = tensors_with_states();
  if (!config_.with_state) tensors.final_state = tensors.final_key_sum = nullptr;
  return tensors;
}

LinearTensors LinearOutputs::tensors_with_states() const {
  return {.q = inputs->q.data(),
          .k = inputs->k.data(),
          .v = inputs->v.data(),
          .o = o_.data(),
          .q_strides = inputs->inputs.q.strides(),
          .k_strides = inputs->inputs.k.strides(),
          .v_strides = inputs->inputs.v.strides(),
          .o_strides = inputs->inputs.v.strides(),
          .gate = floats_of(inputs->gate),
          .gate_strides = gate_strides(config_.linear),
          .initial_state = floats_of(inputs->initial_state),
          .initial_key_sum = floats_of(inputs->initial_key_sum),
          .final_state = floats_of(final_state_),
          .final_key_sum = floats_of(final_key_sum_),
          .starts = inputs->starts.bytes() > 0 ? static_cast<const int*>(inputs->starts.data()) : nullptr};
}

void LinearOutputs::poison() {
  for (Buffer* buffer : {&o_, &final_state_, &final_key_sum_}) {
    if (buffer->bytes() > 0) buffer->poison();
  }
}

Tensor LinearOutputs::o() const {
  const LinearConfig& linear = config_.linear;
  Tensor o = Tensor::zeros(batches(linear), linear.heads, rows_of_tensor(linear), linear.value_dim, linear.out_dtype,
                           config_.layout);
  o_.download(o.data.data(), o.bytes());
  return o;
}

std::vector<float> LinearOutputs::final_state() const { return downloaded<float>(final_state_); }
std::vector<float> LinearOutputs::final_key_sum() const { return downloaded<float>(final_key_sum_); }

std::vector<std::byte> LinearOutputs::bytes() const {
  return config_.with_state ? downloaded({&o_, &final_state_, &final_key_sum_}) : downloaded({&o_});
}

namespace {

/// Compares the root mean square of each row's errors with the row's tolerance. load(i, numbers) reads row i.
template <class Load, class Name>
Check compare_means(size_t columns, const std::vector<double>& want, const std::vector<double>& allowed, Load load,
                    Name name) {
  std::vector<double> row(columns), errors;
  for (size_t i = 0; i < allowed.size(); ++i) {
    load(i, std::span<double>(row));
    double squares = 0;
    for (size_t e = 0; e < columns; ++e) squares += std::pow(row[e] - want[i * columns + e], 2);
    errors.push_back(std::isfinite(allowed[i]) ? std::sqrt(squares / static_cast<double>(columns)) : 0);
  }
  return compare(errors, std::vector<double>(errors.size()), allowed,
                 [&](size_t i) { return "mean error of " + name(i); });
}

}  // namespace

Check LinearOutputs::check() {
  const LinearConfig& linear = config_.linear;
  const LinearReference& want = inputs->reference();
  const Tensor all = o();
  const auto load = [&](const LinearRow& row, std::span<double> numbers) {
    const int64_t first = linear.ragged ? inputs->inputs.starts[static_cast<size_t>(row.sequence)] : 0;
    all.load(all.offset(linear.ragged ? 0 : row.sequence, row.head, first + row.row, 0), numbers);
  };
  const auto name = [](const LinearRow& row) {
    return fmt::format("o of sequence {}, head {}, token {}", row.sequence, row.head, row.row);
  };
  const auto columns = static_cast<size_t>(linear.value_dim);
  Check check = compare_rows(want.rows, columns, load, want.o, want.o_allowed, name);
  check.merge(compare_means(
      columns, want.o, want.row_allowed, [&](size_t i, std::span<double> row) { load(want.rows[i], row); },
      [&](size_t i) { return name(want.rows[i]); }));
  if (config_.with_state) check.merge(check_states());
  check_guards(check, {&inputs->q, &inputs->k, &inputs->v, &inputs->gate, &inputs->initial_state,
                       &inputs->initial_key_sum, &inputs->starts, &o_, &final_state_, &final_key_sum_});
  return check;
}

Check LinearOutputs::check_states() {
  const LinearConfig& linear = config_.linear;
  const LinearReference& want = inputs->reference();
  Check check;
  const auto compare_state = [&](const Buffer& buffer, const std::vector<double>& wanted,
                                 const std::vector<double>& allowed, const char* what, int64_t size) {
    if (buffer.bytes() == 0) return;
    const std::vector<float> values = downloaded<float>(buffer);
    check.merge(compare(std::vector<double>(values.begin(), values.end()), wanted, allowed, [&](size_t i) {
      const auto n = static_cast<int64_t>(i);
      return fmt::format("{} of sequence {}, head {}, element {}", what, n / size / linear.heads,
                         n / size % linear.heads, n % size);
    }));
  };
  compare_state(final_state_, want.state, want.state_allowed, "final state", linear.state_elements());
  if (final_state_.bytes() > 0) {
    const std::vector<float> states = final_state();
    const auto columns = static_cast<size_t>(linear.value_dim);
    check.merge(compare_means(
        columns, want.state, want.state_row_allowed,
        [&](size_t i, std::span<double> row) { std::copy_n(&states[i * columns], columns, row.begin()); },
        [&](size_t i) {
          const auto n = static_cast<int64_t>(i);
          return fmt::format("the final state of sequence {}, head {}, row {}", n / linear.head_dim / linear.heads,
                             n / linear.head_dim % linear.heads, n % linear.head_dim);
        }));
  }
  compare_state(final_key_sum_, want.key_sum, want.key_sum_allowed, "final key sum", linear.head_dim);
  check_guards(check, {&final_state_, &final_key_sum_});
  return check;
}

LinearLaunched::LinearLaunched(Device& device, PipelineCache& pipelines, std::shared_ptr<SharedInputs> inputs,
                               const LinearCase& config, const Plan& plan)
    : device_(device),
      config_(config),
      outputs_(device, std::move(inputs), config),
      launch_(device, pipelines, config.linear, plan) {}

Check LinearLaunched::check_with(const std::function<void(const LinearTensors&)>& launch) {
  Check check = outputs_.check();
  if (!config_.with_state) {
    outputs_.poison();
    launch(outputs_.tensors_with_states());
    check.merge(outputs_.check_states());
  }
  if (!launch_.guards_intact()) check.fail("a guard band of the memory that phases share was overwritten");
  return check;
}

Check LinearProblem::check() {
  return check_with([&](const LinearTensors& tensors) {
    CommandEncoder encoder;
    launch_.encode(encoder, tensors);
    device_.submit(encoder);
  });
}

Json LinearProblem::values() const {
  Json values = {{"recurrence_flops", recurrence_flops(config_.linear)},
                 {"between_bytes", static_cast<int64_t>(launch_.bytes())}};
  if (const auto distance = outputs_.inputs->softmax_distance()) {
    values["softmax_cosine"] = distance->cosine;
    values["softmax_distance"] = distance->relative;
  }
  return values;
}

HostScanProblem::Times HostScanProblem::run(const LinearTensors& tensors) {
  outputs_.poison();
  const auto timed = [&](const auto& encode) {
    CommandEncoder encoder;
    encoder.timestamp();
    encode(encoder);
    encoder.timestamp();
    return device_.submit(encoder).at(0);
  };
  const Stopwatch stopwatch;
  double device_s = timed([&](CommandEncoder& encoder) { launch_.encode_before(encoder, tensors); });
  const LinearLaunch::HostScan scan = launch_.scan_on_host(tensors, outputs_.inputs->inputs.starts);
  device_s += timed([&](CommandEncoder& encoder) { launch_.encode_after(encoder, tensors); });
  return {.all_s = stopwatch.seconds(), .device_s = device_s, .scan = scan};
}

double HostScanProblem::sample() {
  const Times times = run(outputs_.tensors());
  device_s_.push_back(times.device_s);
  down_s_.push_back(times.scan.down_s);
  sum_s_.push_back(times.scan.sum_s);
  up_s_.push_back(times.scan.up_s);
  return times.all_s;
}

Json HostScanProblem::values() const {
  return {{"kernels_s", median_of(device_s_)},
          {"down_s", median_of(down_s_)},
          {"scan_s", median_of(sum_s_)},
          {"up_s", median_of(up_s_)},
          {"between_bytes", static_cast<int64_t>(launch_.bytes())}};
}

namespace {

std::shared_ptr<SharedInputs> inputs_of(InputPool<SharedInputs>& pool, Experiment& lab, const LinearCase& one) {
  return pool.get([&](const SharedInputs& made) { return one.same_inputs(made.config); },
                  [&] { return std::make_shared<SharedInputs>(lab.device(), lab.pipelines(), one, lab.seed()); });
}

}  // namespace

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> linear_problems() {
  return [pool = InputPool<SharedInputs>(), flash_pool = InputPool<FlashInputs>()](
             Experiment& lab, const Case&, const CasePlan& plan) mutable -> std::unique_ptr<Problem> {
    const auto& one = plan.config<LinearCase>();
    if (one.softmax) {
      const auto inputs =
          flash_pool.get([&](const FlashInputs& made) { return one.flash.same_tensors(made.config()); },
                         [&] { return std::make_shared<FlashInputs>(lab.device(), one.flash, lab.seed(), ""); });
      return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), inputs, one.flash, plan);
    }
    return std::make_unique<LinearProblem>(lab.device(), lab.pipelines(), inputs_of(pool, lab, one), one, plan);
  };
}

std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> host_scan_problems() {
  return [pool = InputPool<SharedInputs>()](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& one = plan.config<LinearCase>();
    return std::make_unique<HostScanProblem>(lab.device(), lab.pipelines(), inputs_of(pool, lab, one), one, plan);
  };
}

}  // namespace attn
