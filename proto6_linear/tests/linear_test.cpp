// Most tests compare the forms of linear attention (variants and scans) with the oracle, on the device under test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/cases/feature_oracle.h"
#include "common/linear/tests/linear_mutations.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/user_texts.h"
#include "proto6_linear/tests/linear_run.h"

namespace attn {
namespace {

using test::on_cuda;
using LinearTest = test::OnDevice<testing::Test>;

constexpr Gate all_gates[] = {GATE_NONE, GATE_HEAD, GATE_TOKEN, GATE_CHANNEL};

/// Cases that must agree with the oracle in each form that the device can run: each combination of the values of `axes`
/// and of one of `with`.
struct Agreement {
  const char* name;
  int nth;  // `scripts/test` runs every nth case (common/testing/some.h)
  std::string axes;
  std::vector<std::string> with = {""};
  std::string not_by = "";  // scans that are left out
  std::string decay = "usual";
};
void PrintTo(const Agreement& row, std::ostream* out) { *out << row.name; }

const std::string every_gate = "gate=none,head,token,channel ";

std::vector<Agreement> agreements(bool some) {
  std::vector<Agreement> all = {
      {"EveryFormHasEveryGate", 3, every_gate + "normalised=0,1"},
      {"NotCausal", 1, "causal=0 normalised=0,1"},
      {"WidthsAndChunks",
       5,
       "",
       {"head_dim=8 value_dim=8 chunk=16 gate=token", "head_dim=16 value_dim=64 chunk=48 gate=token",
        "head_dim=64 value_dim=16 chunk=64 gate=token", "head_dim=128 value_dim=96 chunk=32 gate=token",
        "head_dim=256 value_dim=24 chunk=256 gate=channel", "head_dim=40 value_dim=256 chunk=80 gate=channel"},
       "host"},
      {"ElementTypes",
       5,
       "head_dim=64 value_dim=64 layout=bhsd",
       {"dtype=f32 feature=elu1,relu", "dtype=f16 feature=elu1,identity", "dtype=bf16 feature=relu",
        "dtype=bf16 out_dtype=f32 feature=identity"},
       "host lookback"},
      {"Lengths", 1, "q_len=1,2,15,31,32,33,64,65,300 lengths=equal,ragged"},
      // Sequences begin at zero, and the kernel writes no final states.
      {"StatesMayBeAbsent", 1, "state=0 normalised=1"}};
  // The product of weak decays stays nearly 1 over all tokens of a chunk; strong decays leave almost nothing of earlier
  // tokens. No product overflows or is a NaN.
  // Mixed decays are far apart from channel to channel.
  for (const auto& [name, decay] :
       {std::pair{"DecaysNearOne", "weak"}, {"DecaysNearZero", "strong"}, {"MixedDecays", "mixed"}}) {
    all.push_back({name, 1, "gate=head,token,channel chunk=128 q_len=300", {""}, "", decay});
  }
  all.push_back({"MixedDecaysByChannel",
                 1,
                 "gate=channel",
                 {"head_dim=64 value_dim=128", "head_dim=128 value_dim=136", "head_dim=256 value_dim=64"},
                 "host lookback",
                 "mixed"});
  std::erase_if(all, [&](const Agreement& row) { return (row.nth > 1) != some; });
  return all;
}

class LinearCases : public test::OnDevice<testing::TestWithParam<Agreement>> {};
const auto row_name = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Whole, LinearCases, testing::ValuesIn(agreements(false)), row_name);
INSTANTIATE_TEST_SUITE_P(Some, LinearCases, testing::ValuesIn(agreements(true)), row_name);

TEST_P(LinearCases, AgreeWithTheOracle) {
  test::Some some(GetParam().nth);
  int ran = 0;
  for (const std::string& with : GetParam().with) {
    for (LinearCase config : small_cases(GetParam().axes + " " + with)) {
      config.decay = GetParam().decay;
      for (const LinearCase& form : forms(config)) {
        if (GetParam().not_by.find(form.linear.scan) != std::string::npos || some.skips()) continue;
        ++ran;
        EXPECT_EQ(difference(form), "") << words(form);
      }
    }
  }
  EXPECT_GT(ran, 0);
}

TEST_F(LinearTest, SpansOfTwoChunks) {
  for (LinearCase form : forms(small_cases("causal=0").at(0))) {
    form.linear.span_chunks = 2;
    EXPECT_EQ(difference(form), "") << words(form);
  }
}

// ---- NaN and infinity

/// Sets an element of a token to `value`, in Q, K, V or the gate (`where` is 'q', 'k', 'v' or 'g'). Returns the error
/// that the check finds, or an empty text.
std::string difference_with(const LinearCase& config, char where, int64_t token, float value,
                            PipelineCache& cache = test::pipelines()) {
  const LinearCase whole = completed(config);
  const LinearConfig& linear = whole.linear;
  LinearInputs inputs = random_inputs(whole, 7);
  const int64_t rows = inputs.k.seq;
  if (where == 'g') {
    const int64_t width = linear.gate == GATE_CHANNEL ? linear.head_dim : 1;
    inputs.gate[static_cast<size_t>(linear.gate == GATE_HEAD ? 1 : (rows + token) * width + width / 2)] = value;
  } else {
    (where == 'q' ? inputs.q : where == 'k' ? inputs.k : inputs.v).set(0, 1, token, 5, value);
  }
  const auto shared = std::make_shared<SharedInputs>(test::device(), test::pipelines(), whole, 7, std::move(inputs));
  return run_linear(whole, shared, cache).check.worst;
}

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

/// Returns forms(config), and the variant `phases` with bf16.
std::vector<LinearCase> forms_and_bf16(LinearCase config) {
  std::vector<LinearCase> all = forms(config);
  config.linear.dtype = config.linear.out_dtype = DType::bf16;
  all.push_back(config);
  return all;
}

struct Garbage {
  const char* name;
  int nth;
  std::string axes, where;  // for difference_with()
  std::vector<int64_t> tokens;
  float value;
};
void PrintTo(const Garbage& row, std::ostream* out) { *out << row.name; }

class LinearGarbage : public test::OnDevice<testing::TestWithParam<Garbage>> {};
// A NaN in K, V or the gate reaches its token and the later tokens of the sequence and head, and no others. (A gate by
// head belongs to all tokens of the head.) A NaN in Q reaches only its own token. A NaN in V reaches only its own
// column. The tokens are the first and the last of a chunk of 32, and one within a chunk.
INSTANTIATE_TEST_SUITE_P(Some, LinearGarbage,
                         testing::Values(Garbage{
                             "NaN", 31, every_gate + "normalised=0,1", "qkvg", {0, 31, 40}, nan_value}),
                         row_name);
INSTANTIATE_TEST_SUITE_P(
    Whole, LinearGarbage,
    // Queries and keys are positive, so that no sum has infinities of both signs.
    testing::Values(Garbage{"Infinity", 1, every_gate + "feature=elu1", "v", {0, 31, 40}, infinity},
                    // Every feature map keeps a NaN. Without causality it reaches all tokens of the sequence.
                    Garbage{"NaNInFeatures", 1, "feature=identity,elu1,relu causal=0,1", "qkv", {20}, nan_value}),
    row_name);

TEST_P(LinearGarbage, ReachesTheTokensThatSeeIt) {
  const Garbage& row = GetParam();
  test::Some some(row.nth);
  for (const LinearCase& config : small_cases(row.axes)) {
    for (const LinearCase& form : forms_and_bf16(config)) {
      for (const char where : row.where) {
        if (where == 'g' && form.linear.gate == GATE_NONE) continue;
        for (const int64_t token : row.tokens) {
          if (some.skips()) continue;
          EXPECT_EQ(difference_with(form, where, token, row.value), "")
              << words(form) << ", token " << token << " of " << where;
        }
      }
    }
  }
}

// A gate of -infinity leaves nothing of earlier tokens. So a value of 1e36 in V before the gate gives the same outputs,
// bit for bit, as a value of 0.
TEST_F(LinearTest, AGateMayForgetAll) {
  constexpr int64_t token = 40;
  for (const Gate gate : {GATE_TOKEN, GATE_CHANNEL}) {
    LinearCase config = small_case();
    config.linear.gate = gate;
    for (const LinearCase& form : forms(config)) {
      const auto run_after = [&](float value) {
        const LinearCase whole = completed(form);
        LinearInputs inputs = random_inputs(whole, 7);
        const int64_t width = gate == GATE_CHANNEL ? whole.linear.head_dim : 1;
        for (int64_t d = 0; d < width; ++d) {
          inputs.gate[static_cast<size_t>((inputs.k.seq + token) * width + d)] =
              -std::numeric_limits<float>::infinity();
        }
        inputs.v.set(0, 1, token - 1, 5, value);
        return run_linear(whole, std::make_shared<SharedInputs>(test::device(), test::pipelines(), whole, 7, inputs)).o;
      };
      const Tensor without = run_after(0), with = run_after(1e36f);
      for (int64_t row = token; row < 60; ++row) {
        EXPECT_EQ(with.at(0, 1, row, 5), without.at(0, 1, row, 5)) << words(form) << ", row " << row;
      }
    }
  }
}

TEST_F(LinearTest, ChangesThatLoseOrSpreadNaNOrInfinityAreCaught) {
  struct Change {
    const char *variant, *file, *from, *to;
    char where;
    float value;
  };
  const std::vector<Change> of_cuda = {
      {"fused", "fused.cuda.cu", "&& some_value_not_finite(stage)", "&& false", 'v', nan_value},
      {"fused", "fused.cuda.cu", "at_least(gates[i]", "fmaxf(gates[i]", 'g', nan_value},
      {"fused", "fused.cuda.cu", "clear_rows_beyond(block);", "(void)block;", 'v', infinity},
      {"phases", "chunk_o.cuda.cu", "if (some_not_finite(zeros)) write", "if (false) write", 'v', nan_value},
      {"phases", "phases_tile.h", "return at_least(", "return fmaxf(", 'g', nan_value},
      {"phases", "chunk_h.cuda.cu", "0 * pair[0] + 0 * pair[1] == 0", "true", 'v', infinity},
      {"recurrent", "recurrent.cuda.cu", "ROWS * 16 != HEAD_DIM && d", "false && d", 'v', infinity}};
  const std::vector<Change> of_cpu = {
      {"phases", "step_outputs.h", "any_lane(not_finite != 0)", "false", 'v', nan_value}};
  for (const Change& change : on_cuda ? of_cuda : of_cpu) {
    LinearCase config = small_case(change.variant);
    config.linear.gate = GATE_TOKEN;
    config.linear.feature = named_feature("elu1");
    const auto wrong = [&](PipelineCache& cache) {
      return difference_with(config, change.where, 31, change.value, cache) +
             difference_with(config, change.where, 0, change.value, cache);
    };
    EXPECT_EQ(wrong(test::pipelines()), "") << change.file;
    const test::MutatedSources mutated(std::string("common/linear/kernels/") + change.file, change.from, change.to);
    PipelineCache cache(test::device(), "");
    EXPECT_NE(wrong(cache), "") << change.file << ": " << change.from;
  }
}

Tensor rows_of(const Tensor& tensor, int64_t first, int64_t count) {
  Tensor part = Tensor::zeros(tensor.batch, tensor.heads, count, tensor.dim, tensor.dtype, tensor.layout);
  std::vector<double> row(static_cast<size_t>(tensor.dim));
  for (int64_t b = 0; b < tensor.batch; ++b) {
    for (int64_t h = 0; h < tensor.heads; ++h) {
      for (int64_t s = 0; s < count; ++s) {
        tensor.load(tensor.offset(b, h, first + s, 0), row);
        part.store(part.offset(b, h, s, 0), row);
      }
    }
  }
  return part;
}

// Each sequence runs in three parts, each from the final state of the previous one. The oracle has whole sequences.
TEST_F(LinearTest, PartsAreChainedByStates) {
  for (const Gate gate : all_gates) {
    LinearCase config = small_case();
    config.linear.ragged = false;
    config.linear.gate = gate;
    config.linear.normalised = true;
    for (const LinearCase& form : forms(completed(config))) {
      const LinearCase whole_case = completed(form);
      const auto whole = std::make_shared<SharedInputs>(test::device(), test::pipelines(), whole_case, 7);
      const LinearReference& want = whole->reference();
      LinearInputs next = whole->inputs;
      std::vector<double> o(want.o.size());
      LinearRun run;
      for (int64_t first = 0; const int64_t count : {70, 1, 79}) {
        LinearCase part = whole_case;
        part.linear.tokens = count;
        part = completed(part);
        next.q = rows_of(whole->inputs.q, first, count);
        next.k = rows_of(whole->inputs.k, first, count);
        next.v = rows_of(whole->inputs.v, first, count);
        if (gate == GATE_TOKEN || gate == GATE_CHANNEL) {
          const auto width = static_cast<size_t>(form.linear.key_width());
          next.gate.clear();
          for (size_t head = 0; head < 6; ++head) {
            const auto begin =
                whole->inputs.gate.begin() + static_cast<int64_t>((head * 150 + static_cast<size_t>(first)) * width);
            next.gate.insert(next.gate.end(), begin, begin + count * static_cast<int64_t>(width));
          }
        }
        run = run_linear(part, std::make_shared<SharedInputs>(test::device(), test::pipelines(), part, 7, next));
        ASSERT_TRUE(run.check.ok) << words(part) << ": " << run.check.worst;
        next.initial_state = run.state;
        next.initial_key_sum = run.key_sum;
        for (size_t i = 0; i < want.rows.size(); ++i) {
          const LinearRow& row = want.rows[i];
          for (int64_t e = 0; row.row >= first && row.row < first + count && e < 40; ++e) {
            o[i * 40 + static_cast<size_t>(e)] = run.o.at(row.sequence, row.head, row.row - first, e);
          }
        }
        first += count;
      }
      const auto place = [](size_t i) { return std::to_string(i); };
      const Check outputs = compare(o, want.o, want.o_allowed, place);
      EXPECT_TRUE(outputs.ok) << words(form) << ": o " << outputs.worst;
      const Check state =
          compare(std::vector<double>(run.state.begin(), run.state.end()), want.state, want.state_allowed, place);
      EXPECT_TRUE(state.ok) << words(form) << ": state " << state.worst;
    }
  }
}

TEST_F(LinearTest, ScanFormsAgree) {
  LinearCase config = small_case();
  config.linear.gate = GATE_TOKEN;
  config.linear.tokens = 700;
  config.linear.chunk = 16;
  config = completed(config);
  const auto inputs = std::make_shared<SharedInputs>(test::device(), test::pipelines(), config, 7);
  const LinearRun first = run_linear(config, inputs);
  ASSERT_TRUE(first.check.ok) << first.check.worst;
  for (const auto& [scan, span_chunks] :
       {std::pair{"host", 0}, {"passes", 1}, {"passes", 5}, {"lookback", 1}, {"lookback", 3}}) {
    config.linear.scan = scan;
    config.linear.span_chunks = span_chunks;
    const LinearRun run = run_linear(config, inputs);
    EXPECT_TRUE(run.check.ok) << scan << " " << span_chunks << ": " << run.check.worst;
    double largest = 0, apart = 0;
    for (size_t i = 0; i < run.state.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(first.state[i])));
      apart = std::max(apart, std::abs(static_cast<double>(run.state[i]) - static_cast<double>(first.state[i])));
    }
    EXPECT_LE(apart, 1e-5 * largest) << scan << " " << span_chunks;
  }
}

// Every second threadgroup publishes its sums late, so that later threadgroups look farther back, or wait.
TEST_F(LinearTest, LookBackOverSlowPredecessors) {
  for (const Gate gate : {GATE_NONE, GATE_TOKEN, GATE_CHANNEL}) {
    for (const int64_t delay : {20000, 400000}) {
      LinearCase config = small_case("phases", "lookback");
      config.linear.normalised = true;
      config.linear.gate = gate;
      config.linear.tokens = 200;
      config.linear.chunk = 16;
      config.linear.span_chunks = 2;
      config.linear.delay = delay;
      EXPECT_EQ(difference(config), "") << words(config) << " delay " << delay;
      config.linear.tokens = 400;
      config = in_form(config, "fused");
      config.linear.segments = 6;
      if (!linear_plan(completed(config).linear, test::device().info(), true).unable.empty()) continue;
      EXPECT_EQ(difference(config), "") << words(config) << " delay " << delay;
    }
  }
}

TEST_F(LinearTest, SegmentsOfTheFusedForm) {
  for (const LinearCase& config : small_cases("gate=token,channel segments=1,2,3,7,100")) {
    EXPECT_EQ(difference(in_form(config, "fused")), "") << config.linear.segments;
  }
}

// The errors of long sums stay below the tolerance. The test records the share of the tolerance that they reach.
TEST_F(LinearTest, ErrorsGrowSlowly) {
  for (const auto& [variant, scan, longest] : {std::tuple{"fused", "none", 1000000}, {"phases", "lookback", 10000}}) {
    for (const int64_t tokens : {1000, longest}) {
      LinearCase config = small_case(variant, scan);
      config.linear.ragged = false;
      config.linear.sequences = config.linear.heads = 1;
      config.linear.tokens = tokens;
      config.linear.head_dim = config.linear.value_dim = 8;
      config.with_state = false;
      if (forms(config).empty()) continue;
      const Check check = run_linear(config).check;
      EXPECT_TRUE(check.ok) << words(config) << ": " << check.worst;
      EXPECT_LT(check.max_used, config.linear.dtype == DType::f32 ? 0.8 : 1.0) << words(config);
      RecordProperty(std::string(variant) + "_" + std::to_string(tokens), std::to_string(check.max_used));
    }
  }
}

TEST_F(LinearTest, AFeatureMapOfTheUsers) {
  UserFunction function{.name = "square.cpp",
                        .text = "float feature(float x) { return x * x + 0.5f * expf(-x * x); }\n",
                        .kind = FunctionKind::feature,
                        .guarded = true};
  for (const std::string& line : test::lines_with_kernels_names) function.text += line + "\n";
  LinearCase config = small_case();
  config.linear.feature = user_feature(function);
  config.linear.normalised = true;
  for (const LinearCase& form : forms(config)) EXPECT_EQ(difference(form), "") << words(form);
  const FeatureFunction in_double = double_precision(config.linear.feature, test::device(), test::pipelines());
  std::vector<double> values = {-2, 0, 1.5};
  in_double(values);
  EXPECT_NEAR(values[0], 4 + 0.5 * std::exp(-4), 1e-12);
  EXPECT_NEAR(values[1], 0.5, 1e-12);
  EXPECT_NEAR(values[2], 2.25 + 0.5 * std::exp(-2.25), 1e-12);
}

TEST_F(LinearTest, MutationsAreCaught) {
  for (const test::LinearMutation& mutation : test::linear_mutations(on_cuda)) {
    LinearCase config = small_case(mutation.variant);
    config.linear.gate = mutation.gate;
    config.linear.tokens = 300;
    if (mutation.head_dim > 64) {
      config.linear.head_dim = mutation.head_dim;
      config.linear.segments = 1;  // so that a segment has several chunks
    }
    if (mutation.looks_back) {
      config.linear.segments = 5;
      config.linear.delay = 100000;
      if (!on_cuda) config.linear.chunk = 16;
    }
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    const auto passes = [&](Device& on) {
      PipelineCache cache(on, "");
      return run_linear(config, cache, on).check.ok;
    };
    test::expect_caught(test::device(), passes, mutation.what);
  }
}

// ---- faults among 65,536 tokens: reference.cpp says why the check notices them

/// Returns a case of 65,536 tokens. On a cpu its heads are narrow, so that the test is short.
LinearCase long_case(DType dtype, Gate gate) {
  LinearCase config;
  LinearConfig& linear = config.linear;
  linear.variant = "phases";
  linear.scan = "passes";
  linear.heads = 2;
  linear.tokens = 65536;
  linear.head_dim = linear.value_dim = on_cuda ? 64 : 16;
  linear.chunk = 64;
  linear.dtype = linear.out_dtype = dtype;
  linear.gate = gate;
  return completed(config);
}
constexpr int64_t rows_of_long_case = 6000;  // the oracle's rows: in each head one of every 22 tokens

/// Runs the case with K and the gate of `changed`; all else, also the oracle, takes the inputs of `shared`.
Check check_changed(const LinearCase& config, const std::shared_ptr<SharedInputs>& shared,
                    const LinearInputs& changed) {
  const auto upload = [&](const LinearInputs& inputs) {
    shared->k.upload(inputs.k.data.data(), inputs.k.bytes());
    if (!inputs.gate.empty()) shared->gate.upload(inputs.gate.data(), inputs.gate.size() * sizeof(float));
  };
  upload(changed);
  const Check check = run_linear(config, shared).check;
  upload(shared->inputs);
  return check;
}

// A kernel that loses tokens computes as with keys of 0 for these tokens. A kernel whose decays are off by one computes
// with the gate of the next token or, under GATE_HEAD, of the next head.
TEST_F(LinearTest, FaultsAmongManyTokensAreCaught) {
  test::Some some(3);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Gate gate : all_gates) {
      if (some.skips()) continue;
      std::shared_ptr<SharedInputs> shared;
      for (LinearCase form : {in_form(long_case(dtype, gate), "fused"), long_case(dtype, gate)}) {
        form = completed(form);
        if (!linear_plan(form, test::device().info()).unable.empty()) continue;
        if (!on_cuda && form.linear.variant == "phases") continue;  // to keep the test short
        if (!shared || !form.same_inputs(shared->config)) {
          shared = std::make_shared<SharedInputs>(test::device(), test::pipelines(), form, 7);
        }
        shared->reference(rows_of_long_case);
        const Check unbroken = run_linear(form, shared).check;
        EXPECT_TRUE(unbroken.ok) << words(form) << ": " << unbroken.worst;
        EXPECT_LT(unbroken.max_used, 0.8) << words(form);
        RecordProperty(form.linear.variant + "_" + std::string(name(form.linear.dtype)) + "_" + std::to_string(gate),
                       std::to_string(unbroken.max_used));
        for (const auto& [first, count] : {std::pair{40000, 1}, {65000, 1}, {500 * 64, 64}}) {
          LinearInputs changed = shared->inputs;
          for (int64_t head = 0; head < 2; ++head) {
            for (int64_t token = first; token < first + count; ++token) {
              const int64_t from = changed.k.offset(0, head, token, 0);
              for (int64_t d = 0; d < changed.k.dim; ++d) changed.k.store(from + d, 0);
            }
          }
          const Check broken = check_changed(form, shared, changed);
          EXPECT_FALSE(broken.ok) << words(form) << ": " << count << " tokens lost from token " << first << " on";
          // Without a gate the final state shows the fault far more clearly than any row.
          EXPECT_GT(broken.max_used, gate == GATE_NONE ? 10 : 1.5)
              << words(form) << ": " << count << " tokens lost from token " << first << " on";
        }
        if (gate == GATE_NONE) continue;
        LinearInputs changed = shared->inputs;
        const int64_t by = gate == GATE_HEAD ? 1 : form.linear.key_width();
        std::rotate(changed.gate.begin(), changed.gate.begin() + by, changed.gate.end());
        EXPECT_FALSE(check_changed(form, shared, changed).ok) << words(form) << ": another decay";
      }
    }
  }
}

// In the last row of each head all elements are 1 % too large. No element exceeds its own tolerance, but the row
// exceeds the row's.
TEST_F(LinearTest, ARowThatIsTooLargeIsCaught) {
  const LinearCase config = completed(in_form(long_case(DType::bf16, GATE_NONE), "fused"));
  if (!linear_plan(config, test::device().info()).unable.empty()) GTEST_SKIP() << "the device has no kernel";
  const auto shared = std::make_shared<SharedInputs>(test::device(), test::pipelines(), config, 7);
  shared->reference(64);
  Tensor q = shared->inputs.q;
  for (int64_t head = 0; head < 2; ++head) {
    const int64_t from = q.offset(0, head, config.linear.tokens - 1, 0);
    for (int64_t d = 0; d < q.dim; ++d) q.store(from + d, 1.0105 * q.load(from + d));
  }
  shared->q.upload(q.data.data(), q.bytes());
  const Check check = run_linear(config, shared).check;
  EXPECT_FALSE(check.ok);
  // A GPU rounds sums towards zero, so there an element may exceed its tolerance too.
  if (!on_cuda) {
    EXPECT_TRUE(check.worst.starts_with("mean error of o")) << check.worst;
  }
}

// The case has 1024 chunks.
TEST_F(LinearTest, MutationsAmongManyTokensAreCaught) {
  for (const test::LinearMutation& mutation : test::long_mutations(on_cuda)) {
    LinearCase config = long_case(DType::bf16, mutation.gate);
    config =
        completed(in_form(config, mutation.variant, mutation.variant == std::string("phases") ? "passes" : "none"));
    const auto shared = std::make_shared<SharedInputs>(test::device(), test::pipelines(), config, 7);
    shared->reference(rows_of_long_case);
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    PipelineCache cache(test::device(), "");
    EXPECT_FALSE(run_linear(config, shared, cache).check.ok) << mutation.what << ", gate " << mutation.gate;
  }
}

TEST_F(LinearTest, RefusesInvalidConfigurations) {
  LinearConfig config = completed(small_case()).linear;
  const auto make_launch = [&] {
    return LinearLaunch(test::device(), test::pipelines(), config, linear_plan(config, test::device().info(), false));
  };
  config.causal = false;
  config.gate = GATE_TOKEN;
  EXPECT_THROW(make_launch(), BadInput);
  config.gate = GATE_NONE;
  config.variant = "recurrent";
  config.scan = "none";
  EXPECT_THROW(make_launch(), BadInput);
  config.variant = "phases";
  config.scan = "host";
  for (int64_t* const number : {&config.head_dim, &config.value_dim, &config.chunk}) {
    const int64_t right = *number;
    for (const int64_t wrong : {0, 12, 264}) {
      *number = wrong;
      EXPECT_THROW(make_launch(), BadInput) << wrong;
    }
    *number = right;
  }
  const LinearLaunch launch = make_launch();
  CommandEncoder encoder;
  EXPECT_THROW(launch.encode(encoder, {}), std::logic_error);
  config.scan = "passes";
  const float key_sum = 1;
  LinearTensors no_state;
  no_state.initial_key_sum = &key_sum;
  EXPECT_THROW(make_launch().encode(encoder, no_state), BadInput);
  EXPECT_THROW(parse_gate("row"), BadInput);
  EXPECT_THROW(named_feature("gelu"), BadInput);
}

TEST(LinearPlaceTest, ChunksOfRaggedSequences) {
  const int starts[] = {0, 5, 5, 37, 100};
  LinearParams p{};
  p.starts = starts;
  p.sequences = 4;
  p.tokens = 63;
  constexpr int chunk = 16;
  std::vector<int> covered(100);
  for (int number = 0; number < 100 / chunk + 4; ++number) {
    const ChunkPlace place = place_of_chunk(p, number, chunk);
    EXPECT_EQ(place.batch, 0);
    for (int row = 0; row < place.rows; ++row) ++covered[static_cast<size_t>(place.first + row)];
    if (place.rows == 0) continue;
    EXPECT_EQ(place.first_chunk + place.chunk, number);
    EXPECT_EQ(place.first, starts[place.sequence] + place.chunk * chunk);
  }
  EXPECT_EQ(covered, std::vector<int>(100, 1));
}

}  // namespace
}  // namespace attn
