#include "proto4_constants/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "common/attention/flash.h"
#include "common/cases/axes.h"
#include "common/cases/study_cases.h"
#include "common/data/tensor.h"
#include "common/experiment/sweep_span.h"
#include "proto4_constants/claims.h"
#include "proto4_constants/problem.h"

namespace attn {
namespace {

constexpr int64_t most_workers = 16;

// Whether the task gets many variants and may use several threads.
bool takes_workers(const std::string& task) { return task == "compile" || task == "disk" || task == "archive"; }

// N is the number of the host's cores, at most most_workers. Returns the powers of 2 that are below N, then N.
std::vector<int64_t> worker_counts() {
  const int64_t cores = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, most_workers);
  std::vector<int64_t> counts;
  for (int64_t workers = 1; workers < cores; workers *= 2) counts.push_back(workers);
  counts.push_back(cores);
  return counts;
}

// Sets the tile that proto1_flash chooses for the launch.
void set_default_tile(Case& config, const DeviceInfo& device) {
  Case flash;
  flash.set("variant", config.text("kernel"));
  flash.set("batch", int64_t{1});
  for (const char* axis : {"q_heads", "q_len", "head_dim", "causal"}) flash.set(axis, config.integer(axis));
  for (const char* axis : {"dtype", "out_dtype"}) flash.set(axis, config.text("dtype"));
  flash.set("layout", std::string("bhsd"));
  complete_flash(flash, device);
  for (const char* axis : {"block_r", "block_c"}) config.set(axis, flash.integer(axis));
}

// A GPU of NVIDIA has few kernels in f32, and so fewer variants.
Sweep constants_study(const DeviceInfo& device) {
  const bool large = sweep_span(device).large();
  const std::string kernel = large ? "naive" : "tuned";
  const int64_t many = large ? 10 : static_cast<int64_t>(base_variants), largest = large ? 30 : 100;
  std::vector<std::string> read = run_time_axes(kernel, device);
  read.insert(read.begin(), "none");
  const Axis one = integers("workers", {1}), none = texts("run_time", {"none"}), base = integers("variants", {many});
  const auto task = [](const std::vector<std::string>& names) { return texts("task", names); };
  return study_cases({texts("kernel", {kernel}), texts("dtype", {"f32"})},
                     {{task({"run"}), texts("run_time", read), integers("q_heads", {1}),
                       integers("q_len", study_lengths), integers("block_r", {64}), integers("block_c", {64})},
                      {task({"compile_one"}), none, integers("q_heads", {1}), integers("q_len", study_lengths)},
                      {task({"memory", "archive", "archive_create", "archive_load", "start_compile", "start_archive"}),
                       none, base, one},
                      {task({"archive"}), none, integers("variants", {10}), one},
                      {task({"compile"}), none, integers("variants", {1, 10, largest}), one}});
}

}  // namespace

std::vector<AxisInfo> constants_axes() {
  return {{"task",
           "what is timed: getting `variants` variants from the compiler, from memory, from disk or from an archive; "
           "compiling the one variant that proto1_flash would launch; making or reading an archive; a process from its "
           "start to its first result; one launch",
           {"compile", "compile_one", "memory", "disk", "archive", "archive_create", "archive_load", "start_compile",
            "start_disk", "start_archive", "run"},
           0,
           0,
           1},
          {"kernel",
           "the kernel: a variant of proto1_flash",
           {"naive", "tiled_scalar", "tiled_vector", "mma_sync", "wgmma", "tuned"}},
          {"dtype", "type of Q, K, V and O", {"f32", "f16", "bf16"}},
          {"variants",
           "number of variants; the first 72 variants of the kernel tuned combine head_dim, block_r, block_c, causal, "
           "alibi",
           {},
           1,
           10000,
           1},
          {"workers", "threads that get the variants", {}, 1, 256, 1},
          {"pch", "1: the compiler precompiles headers; not every compiler can", {}, 0, 1, 1},
          {"q_heads", "heads of a launch", {}, 1, 1024, 1},
          {"q_len", "queries of a launch; the launch has as many keys", {}, 1, int64_t{1} << 24, 1},
          {"head_dim", "elements of a head of a launch", {}, 8, 256, 8},
          {"block_r",
           "query rows of a tile of a launch; for compile_one always the tile that proto1_flash takes",
           {},
           16,
           256,
           16},
          {"block_c",
           "keys of a tile of a launch; for compile_one always the tile that proto1_flash takes",
           {},
           16,
           1024,
           16},
          {"causal", "1: a launch has a causal mask", {}, 0, 1, 1},
          {"alibi", "1: the score hook of a launch subtracts slope * distance", {}, 0, 1, 1},
          {"run_time",
           "constants that a launch reads at run time",
           {"none", "head_dim", "block_r", "block_c", "causal", "alibi", "all"}}};
}

Sweep constants_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  const Axis tuned = texts("kernel", {"tuned"}), dtype = texts("dtype", {span.dtype});
  const Axis off = integers("pch", {0}), one = integers("workers", {1});
  const std::vector<int64_t> workers = worker_counts();
  const auto task = [](const std::vector<std::string>& names) { return texts("task", names); };
  Sweep sweep;
  const auto add = [&](const Block& block) { sweep.blocks.push_back(block); };
  const auto add_host = [&](Block block) {
    block.push_back(texts("run_time", {"none"}));
    add(block);
  };

  // Returns the values of run_time for a kernel: "none", each constant that the kernel can read at run time, and "all"
  // if the kernel can read several constants.
  const auto read = [&](const std::string& kernel) {
    std::vector<std::string> values = run_time_axes(kernel, device);
    if (values.size() > 1) values.emplace_back("all");
    values.insert(values.begin(), "none");
    return texts("run_time", values);
  };
  const Axis causal = integers("causal", {0, 1}),
             some_masks = integers("causal", full ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0});
  const Axis dims = integers("head_dim", full ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{64});
  const Axis no_hook = integers("alibi", {0});
  const auto add_run = [&](const std::string& kernel, int64_t heads, int64_t length, int64_t rows, int64_t keys,
                           const Axis& masks) {
    add({task({"run"}), texts("kernel", {kernel}), dtype, integers("q_heads", {heads}), integers("q_len", {length}),
         dims, integers("block_r", {rows}), integers("block_c", {keys}), masks, no_hook, read(kernel)});
  };
  if (large) {
    add_run("naive", 16, 1024, 0, 0, some_masks);
    add_run("mma_sync", 32, 4096, 128, 64, causal);
  } else {
    if (full) add_run("tiled_scalar", 8, 256, 64, 64, some_masks);
    add_run("tiled_vector", 8, 256, 64, 64, some_masks);
    add_run("tuned", 8, 1024, 64, 128, causal);
  }

  // The slowest cases come last. A GPU's compiler takes several times as long for a variant as the CPU's compiler, so
  // the sweep with the large load (SweepSpan::Load) has fewer cases of many variants.
  const std::vector<int64_t> counts =
      full ? std::vector<int64_t>{1, 10, 50} : std::vector<int64_t>{1, 5, large ? 10 : 20};
  const Axis few = integers("variants", {counts[1]}),
             base = integers("variants", {static_cast<int64_t>(base_variants)});
  add_host({task({"memory", "disk", "archive", "archive_create", "archive_load", "start_compile", "start_disk",
                  "start_archive"}),
            tuned, dtype, base, one, off});
  add_host({task({"disk", "archive"}), tuned, dtype, few, one, off});
  if (full) {
    add_host({task({"memory", "disk", "archive", "archive_create", "archive_load"}), tuned, dtype,
              integers("variants", {500}), one, off});
  }
  for (const char* kernel : {"naive", large ? "mma_sync" : "tiled_vector"}) {
    add_host({task({"compile"}), texts("kernel", {kernel}), dtype, few, one, off});
  }
  if (large) add_host({task({"compile"}), tuned, dtype, few, one, integers("pch", {0, 1})});
  add_host({task({"compile_one"}), tuned, dtype, integers("head_dim", {64, 128, 256}), integers("causal", {1})});
  add_host({task({"compile"}), tuned, dtype, integers("variants", counts), integers("workers", workers), off});
  if (full) {
    add_host({task({"compile"}), tuned, dtype, integers("variants", {100, 500}),
              integers("workers", large ? std::vector<int64_t>{workers.back()} : workers), off});
  }
  return sweep;
}

void complete_constants(Case& config, const DeviceInfo& device) {
  const std::string task = config.text("task"), kernel = config.text("kernel");
  const auto set = [&](const std::vector<const char*>& axes, int64_t value) {
    for (const char* axis : axes) config.set(axis, value);
  };
  if (task == "run" || task == "compile_one") {
    const bool large = sweep_span(device).large(), tuned = kernel == "tuned", run = task == "run";
    set({"variants", "workers"}, run ? 0 : 1);
    set({"pch"}, 0);
    if (kernel == "naive") set({"block_r", "block_c"}, 0);
    config.set_default("q_heads", large ? 32 : 8);
    config.set_default("q_len", large ? 4096 : tuned ? 1024 : 256);
    config.set_default("head_dim", 64);
    config.set_default("causal", 0);
    config.set_default("alibi", 0);
    if (run) {
      config.set_default("block_r", large ? 128 : 64);
      config.set_default("block_c", tuned && !large ? 128 : 64);
      return;
    }
    config.set("run_time", std::string("none"));
    set_default_tile(config, device);
    return;
  }
  set({"q_heads", "q_len", "head_dim", "block_r", "block_c", "causal", "alibi"}, 0);
  config.set("run_time", std::string("none"));
  if (!takes_workers(task)) set({"workers"}, 1);
  if (task != "compile") set({"pch"}, 0);
  config.set_default("workers", 1);
  config.set_default("pch", 0);
  config.set_default("variants", 10);
}

Variant run_variant(const Case& config) {
  Variant variant;
  FlashConfig& flash = variant.config;
  flash.variant = config.text("kernel");
  const int64_t heads = config.integer("q_heads"), length = config.integer("q_len");
  flash.shape = {.batch = 1,
                 .q_heads = heads,
                 .kv_heads = heads,
                 .q_len = length,
                 .kv_len = length,
                 .head_dim = config.integer("head_dim"),
                 .causal = config.integer("causal") != 0};
  flash.dtype = flash.out_dtype = parse_dtype(config.text("dtype"));
  flash.block_r = config.integer("block_r");
  flash.block_c = config.integer("block_c");
  variant.alibi = config.integer("alibi") != 0;
  return variant;
}

Variant compiled_variant(const Case& config) {
  Variant variant = run_variant(config);
  variant.config.shape = small_shape(config.integer("head_dim"), config.integer("causal") != 0);
  return variant;
}

std::string constants_unable(const Case& config, const DeviceInfo& device) {
  const std::string& kernel = config.text("kernel");
  if (std::string reason = variant_unable(kernel, device); !reason.empty()) return reason;
  const std::string& task = config.text("task");
  if (task != "run" && task != "compile_one") {
    const auto wanted = static_cast<size_t>(config.integer("variants"));
    const size_t available = variant_grid(kernel, parse_dtype(config.text("dtype")), device).size();
    if (wanted > available)
      return fmt::format("{} has {} variants with {} on this device", kernel, available, config.text("dtype"));
    if (config.integer("pch") != 0 && !device.has("pch")) {
      return fmt::format("{} does not precompile headers", device.toolchain);
    }
    return "";
  }
  const std::string& run_time = config.text("run_time");
  const std::vector<std::string> allowed = run_time_axes(kernel, device);
  if (run_time == "all" && allowed.size() == 1)
    return fmt::format("{} can read only {} at run time, so this case is run_time={}", kernel, allowed[0], allowed[0]);
  if (run_time != "none" && allowed.empty()) return fmt::format("{} can read no constant at run time", kernel);
  if (run_time != "none" && run_time != "all" && std::find(allowed.begin(), allowed.end(), run_time) == allowed.end()) {
    return fmt::format("{} needs {} at compile time; at run time it can read {}", kernel, run_time,
                       fmt::join(allowed, ", "));
  }
  return "";
}

ExperimentSpec constants_experiment() {
  return {.name = "proto4_constants",
          .summary = "Function constants: what a compiled variant costs, and what it saves.",
          .axes = constants_axes(),
          .compared_axes = {"run_time"},
          .default_tile = false,
          .claims = [](const DeviceInfo&) { return constants_claims(); },
          .sweep = constants_sweep,
          .study_sweep = constants_study,
          .complete = complete_constants,
          .plan = constants_plan,
          .make = constants_launches(),
          .make_host = constants_host_problems(),
          .most_silent_s = 3600};  // a sample may compile hundreds of variants
}

}  // namespace attn
