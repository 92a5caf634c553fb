#include "proto8_extension/sweep.h"

#include "common/cases/study_cases.h"
#include "common/experiment/sweep_span.h"
#include "proto8_extension/claims.h"
#include "proto8_extension/problem.h"

namespace attn {

std::vector<AxisInfo> extension_axes() {
  return {
      {"task",
       "what is timed; first_call: first call of an engine; call: calls on existing tensors, one after the other (up "
       "to 16 tokens: timed until the last call returns; more tokens: timed until the device has done all calls)",
       {"call", "first_call"}},
      {"path",
       "what is called; direct: the launch itself; waited: the launch itself, and each call waits until the device is "
       "done, by a copy of 4 bytes to the host; engine: Engine; c: attn.h; dlpack: attn.h with tensors described "
       "anew; concept: a C++ framework with attention; torch: PyTorch's operator; copies: attn.h with copies of all "
       "tensors from and to the host",
       {"direct", "waited", "engine", "c", "dlpack", "concept", "torch", "copies"}},
      {"op", "attention, or a kernel that does nothing", {"flash", "empty"}},
      {"from",
       "where the kernel of a first call comes from; always none with task call",
       {"none", "compiler", "disk", "archive"}},
      {"dtype", "type of Q, K, V and O", {"f32", "f16", "bf16"}},
      {"q_heads", "heads of Q, K and V", {}, 1, 1024, 1},
      {"q_len", "number of queries; the number of keys is equal", {}, 1, int64_t{1} << 20, 1},
      {"head_dim", "elements of a row of a head", {}, 8, 256, 8}};
}

namespace {

const Axis paths = texts("path", {"direct", "engine", "c", "dlpack", "concept", "torch", "copies"});

Sweep extension_study(const DeviceInfo& /*device*/) {
  return study_cases(
      {texts("task", {"call"}), integers("q_heads", {1}), integers("head_dim", {64}), texts("dtype", {"f32"})},
      {{texts("op", {"empty"}), texts("path", {"direct", "waited", "c"}), integers("q_len", {one_tile})},
       {texts("op", {"flash"}), paths, integers("q_len", study_lengths)}});
}

}  // namespace

Sweep extension_sweep(const std::string& profile, const DeviceInfo& /*device*/) {
  const Axis call = texts("task", {"call"}), first = texts("task", {"first_call"});
  const Axis flash = texts("op", {"flash"}), one_head = integers("q_heads", {1}), heads = integers("q_heads", {8});
  Sweep sweep;
  sweep.blocks.push_back({call, texts("path", {"direct", "waited", "engine", "c", "torch"}), texts("op", {"empty"}),
                          one_head, integers("q_len", {one_tile})});
  sweep.blocks.push_back({call, paths, flash, one_head, integers("q_len", {one_tile})});
  sweep.blocks.push_back({call, paths, flash, heads,
                          integers("q_len", profile == "quick" ? std::vector<int64_t>{64, 1024}
                                                               : std::vector<int64_t>{64, 256, 1024, 4096})});
  sweep.blocks.push_back({first, texts("path", {"c"}), flash, texts("from", {"archive", "disk", "compiler"}), heads,
                          integers("q_len", {64})});
  return sweep;
}

void complete_extension(Case& config, const DeviceInfo& device) {
  config.set_default("task", std::string("call"));
  config.set_default("path", std::string("c"));
  config.set_default("op", std::string("flash"));
  if (config.text("task") == "call") config.set("from", std::string("none"));
  config.set_default("from", std::string("archive"));
  config.set_default("dtype", sweep_span(device).dtype);
  config.set_default("q_heads", int64_t{8});
  config.set_default("q_len", int64_t{1024});
  config.set_default("head_dim", int64_t{64});
}

FlashConfig extension_config(const Case& config, const DeviceInfo& device) {
  FlashConfig flash;
  flash.variant = "tuned";
  const int64_t heads = config.integer("q_heads"), length = config.integer("q_len");
  flash.shape = {
      .q_heads = heads, .kv_heads = heads, .q_len = length, .kv_len = length, .head_dim = config.integer("head_dim")};
  flash.dtype = flash.out_dtype = parse_dtype(config.text("dtype"));
  choose_tile(flash, device);
  return flash;
}

ExperimentSpec extension_experiment() {
  return {.name = "proto8_extension",
          .summary = "Attention inside a framework: what each way to call it costs.",
          .axes = extension_axes(),
          .compared_axes = {"path", "from"},
          .default_tile = false,
          .claims = [](const DeviceInfo&) { return extension_claims(); },
          .sweep = extension_sweep,
          .study_sweep = extension_study,
          .complete = complete_extension,
          .plan = extension_plan,
          .make = {},
          .make_host = extension_problems()};
}

}  // namespace attn
