#include "proto8_extension/problem.h"

#include <fmt/format.h>

#include <cmath>
#include <future>
#include <optional>
#include <utility>

#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"
#include "common/cases/compare_rows.h"
#include "common/cases/input_pool.h"
#include "common/cases/inputs.h"
#include "common/cases/reference.h"
#include "proto8_extension/allocations.h"
#include "proto8_extension/paths.h"
#include "proto8_extension/sweep.h"

namespace attn {
namespace {

/// Returns the number of calls in a sample. A stream can hold this many calls without making the host wait.
int64_t calls_of(const AttentionShape& shape, const DeviceInfo& device) {
  constexpr int64_t pairs_of_sample = int64_t{1} << 21, most = 256;
  if (device.has("untimed")) return 1;
  const int64_t pairs = shape.q_heads * shape.q_len * shape.kv_len;
  return std::clamp<int64_t>(pairs_of_sample / pairs, device.on_host ? 1 : 16, most);
}

/// Compares some rows of an output with the rows that reference_attention() computes. The output is `written`, or
/// `tensors.o` if `written` is null.
Check check_outputs(Host& host, Tensors& tensors, const void* written) {
  Tensor got = tensors.host_q;
  host.device->download(got.data.data(), written ? written : tensors.o.data(), got.bytes());
  const AttentionShape& shape = tensors.config.shape;
  const ReferenceRows want =
      reference_attention(shape, tensors.host_q, tensors.host_k, tensors.host_v, sample_rows(shape, 64, 1));
  const double relative = tensors.config.dtype == DType::f32 ? 1e-4 : 1e-2;
  std::vector<double> allowed;
  for (const double o : want.o) allowed.push_back(relative * (1 + std::abs(o)));
  return compare_rows(
      want.rows, static_cast<size_t>(shape.head_dim),
      [&](const RowIndex& row, std::span<double> numbers) {
        got.load(got.offset(row.batch, row.head, row.q, 0), numbers);
      },
      want.o, allowed,
      [](const RowIndex& row) { return fmt::format("o of batch {}, head {}, query {}", row.batch, row.head, row.q); });
}

/// A problem that makes calls one after the other. A sample is the mean time of a call. Calls with up to `one_tile`
/// tokens are timed until the last call returns; longer calls, until the device has done all calls of the sample. A
/// separate thread makes the calls, because on a GPU another context is current in the thread of the measuring loop.
class CallProblem : public HostProblem {
 public:
  CallProblem(std::shared_ptr<Host> host, std::shared_ptr<Tensors> tensors, const Case& config, const Plan& plan)
      : host_(std::move(host)),
        tensors_(std::move(tensors)),
        flash_(config.text("op") == "flash"),
        until_done_(config.integer("q_len") > one_tile),
        calls_(calls_of(tensors_->config.shape, host_->device->info())) {
    on_its_thread([&] {
      const std::string &path = config.text("path"), &op = config.text("op");
#ifdef ATTN_HAS_TORCH
      if (path == "torch") call_ = torch_call(op, host_->device->info(), *tensors_, &written_);
#endif
      if (path == "direct") call_ = direct_call(*host_, *tensors_, plan);
      if (path == "waited") {
        call_ = [this, call = direct_call(*host_, *tensors_, plan)] {
          call();
          wait();
        };
      }
      if (!call_) call_ = call_of(path, op, *host_, *tensors_);
      tensors_->o.poison();
      call_();
    });
  }

  double sample() override {
    double seconds = 0;
    on_its_thread([&] {
      call_();  // makes the context current, and warms the caches
      wait();
      const int64_t before = allocations();
      const Stopwatch stopwatch;
      for (int64_t i = 0; i < calls_; ++i) call_();
      if (until_done_) wait();
      seconds = stopwatch.seconds();
      allocated_ = static_cast<double>(allocations() - before) / static_cast<double>(calls_);
    });
    return seconds / static_cast<double>(calls_);
  }
  Check check() override { return flash_ ? check_outputs(*host_, *tensors_, written_) : Check{}; }
  Json values() const override { return {{"calls", calls_}, {"allocations", allocated_}}; }

 private:
  template <typename Action>
  void on_its_thread(const Action& action) {
    std::async(std::launch::async, [&] {
      action();
      wait();
    }).get();
  }
  // download() waits for the default stream, on which all calls run.
  void wait() { host_->device->download(&last_, tensors_->o.data(), sizeof last_); }

  std::shared_ptr<Host> host_;
  std::shared_ptr<Tensors> tensors_;
  const bool flash_;
  const bool until_done_;
  const int64_t calls_;
  const void* written_ = nullptr;
  std::function<void()> call_;
  float last_ = 0;
  double allocated_ = 0;
};

/// A problem whose sample is the first call of an engine that was just opened.
class FirstCallProblem : public HostProblem {
 public:
  FirstCallProblem(std::shared_ptr<Host> host, std::shared_ptr<Tensors> tensors, const Case& config)
      : host_(std::move(host)),
        tensors_(std::move(tensors)),
        from_(config.text("from")),
        archive_(ready_.path() / "kernels.archive") {
    if (from_ == "compiler") return;
    Once once(*this, ready_.path().string(), "");
    once.call(*this);
    checked(attn_save_archive(once.engine, archive_.c_str()));
  }

  double sample() override {
    const TemporaryFolder nothing;
    const Stopwatch opening;
    const Once once(*this, from_ == "disk" ? ready_.path().string() : nothing.path().string(),
                    from_ == "archive" ? archive_ : "");
    open_s_ = opening.seconds();
    return once.call(*this);
  }
  Check check() override { return check_outputs(*host_, *tensors_, nullptr); }
  Json values() const override { return {{"open_s", open_s_}}; }

 private:
  /// An engine that takes its kernels from a folder or an archive.
  struct Once {
    Once(const FirstCallProblem& problem, const std::string& folder, const std::string& archive) {
      const attn_open_options options{sizeof options, folder.c_str(), archive.empty() ? nullptr : archive.c_str(),
                                      nullptr, nullptr};
      checked(attn_open(problem.host_->spec.c_str(), &options, &engine));
    }
    ~Once() { attn_close(engine); }
    Once(const Once&) = delete;
    Once& operator=(const Once&) = delete;

    double call(const FirstCallProblem& problem) const {
      attn_engine* const own = std::exchange(problem.host_->c, engine);
      const std::function<void()> call = call_of("c", "flash", *problem.host_, *problem.tensors_);
      const Stopwatch stopwatch;
      call();
      const double seconds = stopwatch.seconds();
      problem.host_->c = own;
      return seconds;
    }
    attn_engine* engine = nullptr;
  };

  std::shared_ptr<Host> host_;
  std::shared_ptr<Tensors> tensors_;
  const std::string from_;
  TemporaryFolder ready_;
  const std::string archive_;
  double open_s_ = 0;
};

}  // namespace

CasePlan extension_plan(const Case& config, const Setting& setting) {
  const DeviceInfo& device = setting.device;
  const std::string &path = config.text("path"), &op = config.text("op");
  const FlashConfig flash = extension_config(config, device);
  Plan plan = attention_plan(flash, device);
  if (!plan.unable.empty()) return plan;
  if (op == "empty") {
    plan.work = {};
    plan.launches.front() = {
        .source = {.path = device.operations->kernel_file("common/api/kernels/empty"), .entry = "empty"},
        .threads = 32,
        .phase = "empty"};
  }
  plan.host = true;
  plan.unable = path_missing(path);
  if (path == "torch" && device.backend == "metal") {
    plan.unable = "path torch: PyTorch's operators have no kernels for Metal";
  }
  if (op == "empty" && (path == "dlpack" || path == "concept" || path == "copies")) {
    plan.unable = fmt::format("path {}: the kernel of op empty has no tensors to describe or to copy", path);
  }
  if (config.text("task") == "first_call" && path != "c") plan.unable = "task first_call: only path c is timed";
  CasePlan planned{std::move(plan), flash};
  if (op != "empty") planned.memory = flash_memory(flash, 1);
  return planned;
}

std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> extension_problems() {
  struct Shared {
    std::shared_ptr<Host> host;
    InputPool<Tensors> tensors;
    std::optional<TemporaryFolder> cache;
  };
  return [shared = std::make_shared<Shared>()](Experiment& lab, const Case& config,
                                               const CasePlan& plan) -> std::unique_ptr<HostProblem> {
    if (!shared->host) {
      shared->cache.emplace();
      shared->host = std::make_shared<Host>(lab.device().info().spec, shared->cache->path().string());
    }
    const auto& flash = plan.config<FlashConfig>();
    const auto tensors =
        shared->tensors.get([&](const Tensors& made) { return flash.same_tensors(made.config); },
                            [&] { return std::make_shared<Tensors>(*shared->host, flash, lab.seed()); });
    if (config.text("task") == "first_call") return std::make_unique<FirstCallProblem>(shared->host, tensors, config);
    return std::make_unique<CallProblem>(shared->host, tensors, config, plan);
  };
}

}  // namespace attn
