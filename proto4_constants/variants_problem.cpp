#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "common/base/platform.h"
#include "common/base/stopwatch.h"
#include "common/cases/problem.h"
#include "proto4_constants/problem.h"
#include "proto4_constants/variants.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

constexpr size_t launched_variants = 16;   // a check launches at most this number of variants
constexpr size_t traced_variants = 4;      // at most this number of variants is compiled again with a trace
constexpr double least_sample_s = 200e-6;  // look-ups in memory are repeated until a sample takes this long
// Between two readings of the clock there are about this number of look-ups, but at least one of each variant.
constexpr int64_t look_ups_per_reading = 64;

/// Measures the most memory that this process has had since reset(). known() is false if the system does not allow the
/// reset.
class PeakMemory {
 public:
  void reset() {
    known_ = forget_peak();
    before_ = static_cast<int64_t>(resident_bytes());
  }
  bool known() const { return known_; }
  int64_t bytes() const { return peak_resident_bytes(); }
  int64_t grown_bytes() const { return bytes() - before_; }

 private:
  bool known_ = false;
  int64_t before_ = 0;
};

Check launch(Device& device, PipelineCache& cache, const Variant& variant, uint64_t seed) {
  FlashProblem problem(device, cache, std::make_shared<FlashInputs>(device, variant.config, seed, ""), variant.config,
                       variant.plan(device.info()), variant.hook());
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  device.submit(encoder);
  return problem.check();
}

/// Gets variants in the way that the task says.
class VariantsProblem : public HostProblem {
 public:
  VariantsProblem(Experiment& lab, const Case& config, std::vector<Variant> variants, std::vector<KernelSource> sources,
                  std::shared_ptr<Prepared> prepared)
      : lab_(lab),
        device_(lab.device()),
        task_(config.text("task")),
        workers_(static_cast<unsigned>(config.integer("workers"))),
        pch_(config.integer("pch") != 0),
        variants_(std::move(variants)),
        sources_(std::move(sources)),
        prepared_(std::move(prepared)) {
    sample_ = sampler();
  }

  double sample() override { return sample_(); }

  /// Checks that each variant has the origin that belongs to the task, and that the launched variants compute
  /// attention.
  Check check() override {
    Check check;
    std::optional<PipelineCache> archived;
    if (task_ == "archive_create" || task_ == "archive_load") {
      archived.emplace(device_, "");
      archived->attach(task_ == "archive_load" ? *loaded_ : PipelineArchive::load(prepared_->new_archive()));
    }
    PipelineCache& cache = archived ? *archived : *cache_;
    const std::string origin = task_.starts_with("compile") ? "compiled" : task_ == "disk" ? "disk" : "archive";
    for (const KernelSource& source : sources_) {
      const Pipeline& pipeline = cache.get(source);
      if (pipeline.origin != origin) {
        check.fail(fmt::format("{} has the origin {}; it must have the origin {}", pipeline.binary.key, pipeline.origin,
                               origin));
      }
    }
    const size_t launches = std::min(launched_variants, variants_.size());
    for (size_t i = 0; i < launches; ++i) {
      check.merge(launch(device_, cache, variants_[i * variants_.size() / launches], lab_.seed()));
    }
    return check;
  }

  Json values() const override {
    Json values = {{"variants", variants_.size()}};
    for (const auto& [name, samples] : samples_) values[name] = median(samples);
    if (task_ == "archive_load" || task_ == "archive") {
      values["archive_bytes"] = fs::file_size(prepared_->archive(sources_.size()));
    }
    if (task_ == "archive_create") values["archive_bytes"] = fs::file_size(prepared_->new_archive());
    return values;
  }

 private:
  /// Makes the files that a sample finds on disk. For the tasks memory and archive_create, also gets all variants. Then
  /// returns the function that takes a sample.
  std::function<double()> sampler() {
    const size_t count = sources_.size();
    if (task_.starts_with("compile")) return [this] { return get_all("", ""); };
    if (task_ == "disk") return [this, folder = prepared_->cache(count)] { return get_all(folder, ""); };
    if (task_ == "archive") return [this, file = prepared_->archive(count)] { return get_all("", file); };
    if (task_ == "archive_load") {
      return [this, file = prepared_->archive(count)] {
        const Stopwatch stopwatch;
        loaded_ = PipelineArchive::load(file);
        return stopwatch.seconds();
      };
    }
    get_all("", prepared_->archive(count));
    if (task_ == "memory") return [this] { return look_up_all(); };
    return [this] {  // archive_create
      const Stopwatch stopwatch;
      cache_->archive().save(prepared_->new_archive());
      return stopwatch.seconds();
    };
  }

  /// Gets all variants through a new cache. Returns the seconds, which include reading the archive and loading the
  /// kernels.
  double get_all(const std::string& folder, const std::string& archive) {
    cache_.reset();  // unloads the kernels that the last sample loaded
    cache_.emplace(device_, folder, CompileOptions{.precompile_headers = pch_});
    PeakMemory peak;
    peak.reset();
    const Stopwatch stopwatch;
    if (!archive.empty()) cache_->attach(PipelineArchive::load(archive));
    cache_->prepare(sources_, workers_);
    const double seconds = stopwatch.seconds();
    if (peak.known()) {
      note("peak_bytes", static_cast<double>(peak.bytes()));
      note("peak_grown_bytes", static_cast<double>(peak.grown_bytes()));
    }
    CompileTimes times;
    double load_s = 0, binary_bytes = 0;
    for (const KernelSource& source : sources_) {
      const Pipeline& pipeline = cache_->get(source);
      times += pipeline.binary.times;
      load_s += pipeline.load_s;
      binary_bytes += static_cast<double>(pipeline.binary.code.size());
    }
    if (task_.starts_with("compile")) {
      if (times.optimizer_s == 0) times = apportioned(times);
      note("front_end_s", times.front_end_s);
      note("optimizer_s", times.optimizer_s);
      note("code_generation_s", times.code_generation_s);
    }
    note("load_s", load_s);
    note("binary_bytes", binary_bytes);
    return seconds;
  }

  /// For compilers that do not tell the optimiser's time. Compiles a few variants again with a trace, which takes a
  /// tenth longer than without. Returns the total of `times`, divided in the proportions of the traced phases, or
  /// `times` itself if the compiler gives no trace.
  CompileTimes apportioned(const CompileTimes& times) {
    if (!traced_) {
      traced_.emplace();
      const CompileOptions options{.precompile_headers = pch_, .trace_phases = true};
      const size_t count = std::min(sources_.size(), traced_variants);
      for (size_t i = 0; i < count; ++i) {
        *traced_ += device_.compile(sources_[i * sources_.size() / count], options).times;
      }
    }
    if (traced_->optimizer_s == 0) return times;
    const double scale = times.total_s() / traced_->total_s();
    return {traced_->front_end_s * scale, traced_->optimizer_s * scale, traced_->code_generation_s * scale};
  }

  /// Looks all variants up again and again. Returns the seconds for one round.
  double look_up_all() {
    const Stopwatch stopwatch;
    int64_t rounds = 0;
    const int64_t batch = std::max<int64_t>(1, look_ups_per_reading / static_cast<int64_t>(sources_.size()));
    do {
      for (int64_t i = 0; i < batch; ++i) {
        for (const KernelSource& source : sources_) found_ = &cache_->get(source);
      }
      rounds += batch;
    } while (stopwatch.seconds() < least_sample_s);
    return stopwatch.seconds() / static_cast<double>(rounds);
  }

  void note(const std::string& name, double value) { samples_[name].push_back(value); }

  Experiment& lab_;
  Device& device_;
  const std::string task_;
  const unsigned workers_;
  const bool pch_;
  const std::vector<Variant> variants_;
  std::vector<KernelSource> sources_;
  std::shared_ptr<Prepared> prepared_;
  std::function<double()> sample_;
  std::optional<PipelineCache> cache_;
  std::optional<CompileTimes> traced_;
  std::optional<PipelineArchive> loaded_;
  const Pipeline* volatile found_ = nullptr;  // volatile, so that the compiler keeps the look-ups
  std::map<std::string, std::vector<double>> samples_;
};

}  // namespace

std::unique_ptr<HostProblem> variants_problem(Experiment& lab, const Case& config, std::vector<Variant> variants,
                                              std::vector<KernelSource> sources, std::shared_ptr<Prepared> prepared) {
  return std::make_unique<VariantsProblem>(lab, config, std::move(variants), std::move(sources), std::move(prepared));
}

}  // namespace attn
