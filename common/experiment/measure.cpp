#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

constexpr double max_launch_s = 0.5;      // a longer one may trip a display's watchdog, and hides clock changes
constexpr double short_launch_s = 20e-6;  // below, several launches make one sample: a timestamp costs about 0.1 us
constexpr double sample_s = 100e-6;       // what such a sample then takes
constexpr double compare_share = 1 / 2.;  // of the budget, kept for the comparisons that hypotheses ask for
constexpr double cold_share = 1 / 3.;     // of a group's budget
constexpr double ceilings_s = 0.5;        // for one measurement of the ceilings; part of the start-up
constexpr double min_ceiling_s = 0.2e-3, max_ceiling_s = 50e-3;  // of a launch of the ceiling among others
constexpr double max_matrix_pct = 105;      // above, something else used the device in the ceiling's turns
constexpr double clock_interval_s = 20e-3;  // between readings of the clocks, which take up to 1 ms

constexpr Rounds sweep_rounds{3, 50}, compare_rounds{15, 50};
// What the host does may take seconds: as few as an interval can be had from, and in the quick profile fewer.
constexpr Rounds host_sweep_rounds{3, 6}, host_compare_rounds{6, 10};

/// The device's state over the rounds of a measurement.
class ClockLog {
 public:
  explicit ClockLog(const Device& device) : device_(device) {}

  /// After each round; rounds that are shorter than the interval share a reading.
  void read() {
    if (!readings_.empty() && since_last_.seconds() < clock_interval_s) return;
    readings_.push_back(device_.clocks());
    since_last_ = Stopwatch();
  }

  Json json() const {
    std::set<std::string> reasons;
    for (const Clocks& clocks : readings_) {
      reasons.insert(clocks.throttle_reasons.begin(), clocks.throttle_reasons.end());
    }
    const std::vector<double> core = known(&Clocks::core_mhz);
    return {{"core_mhz", median_or_null(core)},
            {"core_min_mhz", core.empty() ? Json(nullptr) : Json(*std::min_element(core.begin(), core.end()))},
            {"memory_mhz", median_or_null(known(&Clocks::memory_mhz))},
            {"power_w", median_or_null(known(&Clocks::power_w))},
            {"temperature_c", median_or_null(known(&Clocks::temperature_c))},
            {"throttle_reasons", reasons},
            {"readings", readings_.size()}};
  }

 private:
  std::vector<double> known(double Clocks::* field) const {
    std::vector<double> values;
    for (const Clocks& clocks : readings_) {
      if (clocks.*field >= 0) values.push_back(clocks.*field);
    }
    return values;
  }
  static Json median_or_null(const std::vector<double>& values) {
    return values.empty() ? Json(nullptr) : Json(median(values));
  }

  const Device& device_;
  std::vector<Clocks> readings_;
  Stopwatch since_last_;
};

/// Timestamp, launches, timestamp; after a flush where one is given.
CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush = nullptr) {
  CommandEncoder encoder;
  if (flush) flush->encode(encoder);
  encoder.timestamp();
  for (int i = 0; i < launches; ++i) problem.encode(encoder);
  encoder.timestamp();
  return encoder;
}

/// Device and host seconds per launch, both of the same submit.
Sampler hot_sampler(Device& device, const Problem& problem, int launches) {
  return [&device, launches, encoder = encode_launches(problem, launches)]() -> std::vector<double> {
    const Stopwatch host;
    const double device_s = device.submit(encoder).at(0);
    return {device_s / launches, host.seconds() / launches};
  };
}

Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush) {
  return [&device, encoder = encode_launches(problem, 1, &flush)]() -> std::vector<double> {
    return {device.submit(encoder).at(0)};
  };
}

int launches_per_sample(Device& device, const Trial& trial) {
  // The launch that was checked is no guide for a short one: it met cold caches and new pages.
  if (trial.launch_s > 100 * short_launch_s) return 1;
  const CommandEncoder encoder = encode_launches(*trial.problem, 1);
  device.submit(encoder);
  const double launch_s = device.submit(encoder).at(0);
  return launch_s >= short_launch_s ? 1 : static_cast<int>(std::ceil(sample_s / std::max(launch_s, 1e-7)));
}

void fail_lost(Measurement& record, const DeviceLost& error) {
  fail(record, dynamic_cast<const DeviceTimeout*>(&error) ? "timeout" : "failed",
       device_lost + first_line(error.what()));
}

/// Runs a step of a case; what goes wrong in it becomes the status of its record.
template <typename Step>
void guarded(Measurement& record, const Step& step) {
  try {
    step();
  } catch (const BadInput&) {
    throw;
  } catch (const DeviceMissing&) {
    throw;
  } catch (const OutOfMemory& error) {
    fail(record, "oom", fmt::format("{} bytes: {}", error.needed_bytes, first_line(error.what())));
  } catch (const std::bad_alloc&) {
    fail(record, "oom", "the host has no room for the tensors");
  } catch (const DeviceLost& error) {
    fail_lost(record, error);
  } catch (const std::exception& error) {
    fail(record, "failed", first_line(error.what()));
  }
}

bool is_ok(const Trial& trial) { return trial.record.status == "ok"; }

/// Which ceiling a trial is held against: by dtype and by length, in powers of 4, since what takes a core away for some
/// milliseconds hits long launches and spares short ones.
using CeilingKey = std::pair<DType, int>;
CeilingKey ceiling_key(const Trial& trial) {
  const double launch_s = std::clamp(trial.launch_s, min_ceiling_s, max_ceiling_s);
  return {trial.record.dtype, static_cast<int>(std::lround(std::log2(launch_s) / 2))};
}

std::map<CeilingKey, MatrixCeiling> ceilings_beside(Device& device, PipelineCache& pipelines, const Ceilings& measured,
                                                    const std::vector<Trial>& trials) {
  std::map<CeilingKey, MatrixCeiling> beside;
  for (const Trial& trial : trials) {
    const auto [dtype, length] = ceiling_key(trial);
    beside.try_emplace({dtype, length}, device, pipelines, dtype, measured, std::exp2(2 * length));
  }
  return beside;
}

/// The rate of launches that do `flops` each, in per cent of the ceiling's.
Estimate pct_of(const Series& ceiling, double ceiling_flops, const Series& launches, double flops, uint64_t seed) {
  const Estimate times = ratio(ceiling, launches, seed);
  const double pct = 100 * flops / ceiling_flops;
  return {pct / times.value, pct / times.ci_hi, pct / times.ci_lo};
}

// Whether they are about the host; those that are measured together all are, or none is.
bool of_the_host(const std::vector<Trial>& trials) {
  return std::any_of(trials.begin(), trials.end(), [](const Trial& trial) { return static_cast<bool>(trial.host); });
}

}  // namespace

// ---- verify

std::optional<Trial> Experiment::State::verify(const Case& config) {
  Trial trial{.config = config, .problem = nullptr, .record = blank(config)};
  if (const auto reason = skip_reason(config)) {
    if (!options.dump_output.empty()) throw BadInput("--dump-output: the case cannot run here: " + *reason);
    store_skipped(std::move(trial.record), *reason);
    return std::nullopt;
  }
  if (!options.only_verify && sweep_budget() <= 0) {
    store_skipped(std::move(trial.record), budget_spent);
    return std::nullopt;
  }
  guarded(trial.record, [&] {
    make(trial);
    launch_and_check(trial);
    if (!options.dump_output.empty()) trial.problem->dump(options.dump_output);
  });
  if (is_ok(trial)) return trial;
  store(std::move(trial.record));
  return std::nullopt;
}

void Experiment::State::make(Trial& trial) {
  trial.problem = spec.make(lab, trial.config);
  trial.record.dtype = trial.problem->dtype();
  trial.record.work = trial.problem->work();
  trial.record.pipeline = pipeline_json(*trial.problem);
  trial.host = trial.problem->host_sampler();
  if (!trial.host) trial.record.values = trial.problem->values();
}

void Experiment::State::launch_and_check(Trial& trial) {
  trial.problem->poison();
  trial.launch_s = trial.host ? trial.host().at(0) : device->submit(encode_launches(*trial.problem, 1)).at(0);
  trial.record.check = trial.problem->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

void Experiment::State::check_again(Trial& trial) {
  if (!trial.host) return launch_and_check(trial);
  trial.record.check = trial.problem->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

Json Experiment::State::pipeline_json(const Problem& problem) {
  const Pipeline& pipeline = problem.pipeline();
  const Binary& binary = pipeline.binary;
  const auto [known, added] = code_contents.try_emplace(binary.code_sha256);
  if (added) known->second = device->contents(binary);
  const auto& [instructions, code_bytes] = known->second;
  return {{"key", binary.key},
          {"source_sha256", binary.source_sha256},
          {"code_sha256", binary.code_sha256},
          {"registers", binary.registers >= 0 ? Json(binary.registers) : Json(nullptr)},
          {"spill_bytes", binary.spill_bytes >= 0 ? Json(binary.spill_bytes) : Json(nullptr)},
          {"threadgroup_bytes", problem.threadgroup_bytes() + static_cast<size_t>(binary.threadgroup_bytes)},
          {"instructions", instructions.empty() ? Json(nullptr) : Json(instructions)},
          {"code_bytes", code_bytes >= 0 ? Json(code_bytes) : Json(nullptr)},
          {"compile_s", binary.times.total_s()},
          {"cache", pipeline.origin}};
}

// ---- measure

double Experiment::State::sweep_budget() const {
  return budget_left() - (spec.hypotheses.empty() ? 0 : compare_share * options.budget());
}

TimingPolicy Experiment::State::policy(const Rounds& rounds, double budget_s) const {
  TimingPolicy policy;
  policy.min_rounds = options.profile == "full" ? rounds.full : rounds.quick;
  policy.min_samples = std::max(policy.min_samples, policy.min_rounds);
  policy.budget_s = budget_s;
  return policy;
}

const Ceilings& Experiment::State::measured_ceilings() {
  if (!ceilings) ceilings = measure_ceilings(*device, *pipelines, ceilings_s);
  return *ceilings;
}

void Experiment::State::raise_ceilings() {
  ceilings = max(measured_ceilings(), measure_ceilings(*device, *pipelines, ceilings_s));
}

const CacheFlush* Experiment::State::cold_flush() {
  if (options.profile == "full" && !flush_test) {
    flush_test.emplace();
    try {
      flush.emplace(*device);
      *flush_test = test_flush(*device, *pipelines, *flush);
    } catch (const OutOfMemory&) {
      // No room for the flush: not ok, as the test then says.
    }
    if (!flush_test->ok) {
      flush.reset();
      progress.note("device_cold is left out: the self-test shows no effect of flushing the caches");
    }
  }
  return flush ? &*flush : nullptr;
}

void Experiment::State::measure(std::vector<Trial> trials) {
  std::erase_if(trials, [&](Trial& trial) {
    const bool too_long = !trial.host && trial.launch_s > max_launch_s;
    if (!too_long && sweep_budget() > 0) return false;
    store_skipped(std::move(trial.record), too_long ? fmt::format("one launch takes {:.0f} ms; at most {:.0f} ms may",
                                                                  1e3 * trial.launch_s, 1e3 * max_launch_s)
                                                    : budget_spent);
    return true;
  });
  if (trials.empty()) return;
  const bool host = of_the_host(trials);
  const auto beside =
      host ? std::map<CeilingKey, MatrixCeiling>() : ceilings_beside(*device, *pipelines, measured_ceilings(), trials);
  const CacheFlush* const cold = host ? nullptr : cold_flush();
  const auto left = static_cast<double>(std::max(cases_left, trials.size()));
  const double share = sweep_budget() * static_cast<double>(trials.size()) / left;

  const Stopwatch stopwatch;
  ClockLog clocks(*device);
  std::vector<int> launches;
  std::vector<Measured> hot_samples, cold_samples;
  size_t running = 0;  // the trial whose turn it is
  const auto marked = [&running](size_t trial, Sampler sampler) -> Sampler {
    return [&running, trial, sampler = std::move(sampler)] {
      running = trial;
      return sampler();
    };
  };
  std::string failure;
  try {
    std::vector<Sampler> hot_samplers, cold_samplers;
    for (size_t i = 0; i < trials.size(); ++i) {
      running = i;
      const Problem& problem = *trials[i].problem;
      launches.push_back(host ? 1 : launches_per_sample(*device, trials[i]));
      hot_samplers.push_back(marked(i, host ? trials[i].host : hot_sampler(*device, problem, launches.back())));
      if (cold) cold_samplers.push_back(marked(i, cold_sampler(*device, problem, *cold)));
    }
    for (const auto& [key, ceiling] : beside) {
      hot_samplers.emplace_back([&ceiling]() -> std::vector<double> { return {ceiling.sample()}; });
    }
    const Rounds& rounds = host ? host_sweep_rounds : sweep_rounds;
    TimingPolicy hot_policy = policy(rounds, cold ? (1 - cold_share) * share : share);
    if (host) hot_policy.warmup = 0;  // it was sampled when it was checked
    const auto after_round = [&] { clocks.read(); };
    progress.begin(fmt::format("{} in turn, from {}", trials.size(), label(trials.front().config)));
    hot_samples = measure_interleaved(hot_samplers, hot_policy, interrupted, after_round);
    cold_samples = measure_interleaved(cold_samplers, policy(rounds, cold_share * share), interrupted, after_round);
  } catch (const DeviceLost& error) {
    fail_lost(trials[running].record, error);
    store(std::move(trials[running].record));  // which does not return
  } catch (const std::exception& error) {
    // They ran in turn, so none of them can be told to be innocent.
    failure = first_line(error.what());
  }
  measured_s += stopwatch.seconds();

  for (size_t i = 0; i < trials.size(); ++i) {
    Trial& trial = trials[i];
    if (!failure.empty()) {
      fail(trial.record, "failed", failure);
      store(std::move(trial.record));
      continue;
    }
    const Measured& hot = hot_samples[i];
    // Interrupted too early to say anything: as if never reached.
    if (hot.series.empty() || static_cast<int>(hot.series.front().size()) < sweep_rounds.quick) continue;
    const auto add = [&](const Measured& measured, size_t series_index, Scope scope) {
      trial.record.time.push_back(summarize(measured.series[series_index], scope, measured.stop, options.seed));
    };
    if (!host) add(hot, 0, Scope::device_hot);
    if (cold && !cold_samples[i].series.empty()) add(cold_samples[i], 0, Scope::device_cold);
    add(hot, host ? 0 : 1, Scope::host);
    if (!host && trial.record.work && trial.record.work->flops > 0) {
      const auto ceiling = beside.find(ceiling_key(trial));
      const Measured& turns = hot_samples[trials.size() + std::distance(beside.begin(), ceiling)];
      const Estimate pct = pct_of(turns.series.front(), ceiling->second.flops(), hot.series.front(),
                                  trial.record.work->flops, options.seed);
      if (pct.value <= max_matrix_pct) trial.record.matrix_pct = pct;
    }
    trial.record.clocks = clocks.json();
    if (host) trial.record.values = trial.problem->values();
    guarded(trial.record, [&] { check_again(trial); });
    store(std::move(trial.record), launches[i]);
  }
}

// ---- compare

bool Experiment::State::was_measured(const Case& config) const {
  return std::any_of(results.begin(), results.end(), [&](const Measurement& result) {
    return result.config == config && result.status == "ok" && result.main_timing();
  });
}

std::vector<Duel> Experiment::State::replayed_duels() const {
  const Json& data = replayed.at("data");
  const Json& compare = data.at("compare");
  if (compare.is_null()) return {};
  return {{data.at("hypothesis").at("id"), Case::from_json(compare.at("baseline")),
           Case::from_json(compare.at("contender"))}};
}

void Experiment::State::compare(const std::vector<Duel>& duels) {
  const std::vector<Duel> asked = replays_finding() ? replayed_duels() : duels;
  const auto same_pair = [](const Duel& a, const Duel& b) {
    return a.baseline == b.baseline && a.contender == b.contender;
  };
  std::vector<Duel> wanted;  // each pair once, whoever asks for it
  for (const Duel& duel : asked) {
    const bool taken =
        std::any_of(wanted.begin(), wanted.end(), [&](const Duel& other) { return same_pair(duel, other); });
    if (!taken && was_measured(duel.baseline) && was_measured(duel.contender)) wanted.push_back(duel);
  }
  progress.add(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (interrupted()) throw Interrupted{};
    if (budget_left() <= 0) {
      progress.note(fmt::format("{} comparisons are left out: {}", wanted.size() - i, budget_spent));
      return;
    }
    const std::string pair = label(wanted[i].contender) + " against " + label(wanted[i].baseline);
    progress.begin(pair);
    const Stopwatch stopwatch;
    const auto comparison = compare(wanted[i], budget_left() / static_cast<double>(wanted.size() - i));
    measured_s += stopwatch.seconds();
    if (interrupted()) throw Interrupted{};
    if (!comparison) {
      progress.finish(pair + ": failed");
      continue;
    }
    progress.finish(fmt::format("{}: {:.4f} [{:.4f}, {:.4f}], A/A floor {:.4f}", pair, comparison->ratio.value,
                                comparison->ratio.ci_lo, comparison->ratio.ci_hi, comparison->aa_floor()));
    for (const Duel& duel : asked) {
      if (!same_pair(duel, wanted[i])) continue;
      comparisons.push_back(*comparison);
      comparisons.back().hypothesis = duel.hypothesis;
    }
  }
}

std::optional<Comparison> Experiment::State::compare(const Duel& duel, double budget_s) {
  std::vector<Trial> trials;
  for (const Case& config : {duel.baseline, duel.contender, duel.baseline}) {
    trials.push_back({.config = config, .problem = nullptr, .record = blank(config)});
  }
  const auto all_ok = [&] { return std::all_of(trials.begin(), trials.end(), is_ok); };
  for (Trial& trial : trials) {
    if (all_ok()) guarded(trial.record, [&] { make(trial); });
  }
  const bool host = of_the_host(trials);
  std::vector<Measured> measured;
  if (all_ok()) {
    // What goes wrong while they run in turn cannot be laid on one: the contender's record takes it.
    guarded(trials[1].record, [&] {
      // As many launches a sample for all, so that they differ in nothing else.
      int launches = 1;
      std::vector<Sampler> samplers;
      for (const Trial& trial : trials) {
        if (!host) launches = std::max(launches, launches_per_sample(*device, trial));
      }
      for (const Trial& trial : trials) {
        samplers.push_back(host ? trial.host : hot_sampler(*device, *trial.problem, launches));
      }
      TimingPolicy in_turn = policy(host ? host_compare_rounds : compare_rounds, budget_s);
      if (host) in_turn.warmup = 1;
      measured = measure_interleaved(samplers, in_turn, interrupted);
    });
  }
  if (interrupted()) return std::nullopt;
  for (Trial& trial : trials) {
    if (all_ok()) guarded(trial.record, [&] { check_again(trial); });
  }
  if (!all_ok()) {
    for (Trial& trial : trials) {
      if (is_ok(trial)) continue;
      trial.record.reason += " (in a comparison)";
      progress.add(1);
      store(std::move(trial.record));
    }
    return std::nullopt;
  }

  const auto hot = [&](int i) -> const Series& { return measured[i].series.front(); };
  Comparison comparison;
  comparison.baseline = duel.baseline;
  comparison.contender = duel.contender;
  comparison.ratio = ratio(hot(0), hot(1), options.seed);
  comparison.aa = ratio(hot(0), hot(2), options.seed);
  for (const int i : {0, 1}) {
    comparison.time.push_back(
        summarize(hot(i), host ? Scope::host : Scope::device_hot, measured[i].stop, options.seed));
    comparison.cv = std::max(comparison.cv, comparison.time.back().cv);
  }
  return comparison;
}

}  // namespace attn
