#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"
#include "common/experiment/clock_log.h"
#include "common/experiment/run.h"

namespace attn {
namespace {

constexpr double cold_share = 1 / 3.;    // share of a group's budget for cold samples, if the group takes them
constexpr double phase_share = 1 / 10.;  // share of a group's budget for phases, if a case has several launches
constexpr double ceilings_s = 0.5;       // seconds of one measurement of the ceilings; less if --samples is small
constexpr double min_ceiling_s = 0.2e-3, max_ceiling_s = 50e-3;  // bounds for CeilingKey
constexpr double max_ceiling_pct = 100;  // a record keeps no higher share: something slowed the ceiling

constexpr Rounds sweep_rounds{3, 50};
// These numbers are small, because the host's work may take seconds. Six rounds are the fewest that give a 95 %
// interval of a median, so in the quick profile a case may get no such interval.
constexpr Rounds host_rounds{3, 6};

/// Names the matrix ceiling that a trial is compared with: the dtype, and a number n. A launch of the ceiling takes
/// about 4^n seconds. This number of seconds is the power of 4 nearest to the time of the trial's launch, after this
/// time is clamped to [min_ceiling_s, max_ceiling_s]. The lengths must be similar: an event that takes a core away for
/// some milliseconds hits most long launches, but few short launches.
using CeilingKey = std::pair<DType, int>;
CeilingKey ceiling_key(const Trial& trial) {
  const double launch_s = std::clamp(trial.launch_s, min_ceiling_s, max_ceiling_s);
  return {trial.plan.work.dtype, static_cast<int>(std::lround(std::log2(launch_s) / 2))};
}

/// Returns the rate of launches in per cent of the ceiling's rate. A launch does `amount` of work (flops or bytes); a
/// launch of the ceiling does `ceiling_amount`. Returns nothing if the rate exceeds max_ceiling_pct.
std::optional<Estimate> pct_of(const Series& ceiling, double ceiling_amount, const Series& launches, double amount,
                               uint64_t seed) {
  const Estimate times = ratio(ceiling, launches, seed);
  const double pct = 100 * amount / ceiling_amount;
  const Estimate found{pct / times.value, pct / times.ci_hi, pct / times.ci_lo};
  return found.value <= max_ceiling_pct ? std::optional(found) : std::nullopt;
}

template <typename Ceiling>
Sampler sampler_of(const Ceiling& ceiling) {
  return [&ceiling]() -> std::vector<double> { return {ceiling.sample()}; };
}

}  // namespace

const Ceilings& DeviceRates::ceilings() {
  if (!ceilings_) ceilings_ = device_.info().has("untimed") ? Ceilings{} : measured();
  return *ceilings_;
}

Ceilings DeviceRates::measured() {
  const double share = static_cast<double>(options_.samples) / TimingPolicy{}.max_samples;
  ++measured_;
  return measure_ceilings(device_, pipelines_, std::min(share, 1.0) * ceilings_s);
}

void DeviceRates::raise() { ceilings_ = max(ceilings(), measured()); }

std::optional<std::string> DeviceRates::too_long(const Work& work) {
  // Every unit of a device reaches a higher rate than this. So a launch that would be short enough at this rate is
  // short enough. For such a launch the ceilings, which take time to measure, are not needed.
  constexpr double least_unit_flops = 1e9;
  const DeviceInfo& info = device_.info();
  if (work.flops <= options_.max_launch_s * least_unit_flops * info.units || !info.operations->ceilings ||
      info.has("untimed")) {
    return {};
  }
  // Other programs may slow the measurement of the ceilings, so one measurement refuses nothing.
  constexpr int fewest_to_refuse = 3;
  const auto fits = [&] { return work.flops <= options_.max_launch_s * 1e12 * ceilings().matrix_tflops(work.dtype); };
  while (!fits() && measured_ < fewest_to_refuse) raise();
  if (fits()) return {};
  const double tflops = ceilings().matrix_tflops(work.dtype);
  return fmt::format("one launch would take {} or more, at the {:.3g} TFLOPS that the device reaches; {}",
                     milliseconds(work.flops / (1e12 * tflops)), tflops, launch_limit(options_));
}

Json DeviceRates::record_json(Measurement& record, const std::function<void(const std::string&)>& tell) {
  for (int retries = 4;; --retries) {
    try {
      return to_json(record, ceilings_.value_or(Ceilings{}));
    } catch (const std::runtime_error& error) {
      if (ceilings_ && retries > 0) {
        raise();
        continue;
      }
      const std::string message = first_line(error.what());
      if (ceilings_) {
        try {
          to_json(record, scaled(*ceilings_, most_slowed));
          tell(message + "; other programs use the device, so the record has no share of a ceiling");
          return to_json(record, Ceilings{});
        } catch (const std::runtime_error&) {
          // The rate is too high for this explanation, or a value is infinite or NaN.
        }
      }
      fail(record, "failed", message);
      record.values = nullptr;  // to_json() also throws for a value that is not finite
      return to_json(record, Ceilings{});
    }
  }
}

const CacheFlush* DeviceRates::cold_flush() {
  if (!flush_test_) {
    flush_test_.emplace();
    try {
      flush_.emplace(device_);
      *flush_test_ = test_flush(device_, pipelines_, *flush_);
    } catch (const OutOfMemory&) {
      // No memory for the flush: flush_test_->ok stays false.
    }
    if (!flush_test_->ok) flush_.reset();
  }
  return flush_ ? &*flush_ : nullptr;
}

Json DeviceRates::json() const {
  return {{"ceilings", ceilings_ ? ceilings_->json() : Json()},
          {"flush_selftest", flush_test_ ? flush_test_->json() : Json()}};
}

TimingPolicy Runner::policy(const Rounds& rounds, double budget_s) const {
  TimingPolicy policy;
  const auto share = [&](int whole) { return (whole + task_.parts - 1) / task_.parts; };
  policy.min_rounds = share(options_.profile == "full" ? rounds.full : rounds.quick);
  // A verdict needs min_rounds_to_judge rounds. All parts together must reach this number.
  if (task_.part > 0) policy.min_rounds = std::max(policy.min_rounds, share(min_rounds_to_judge));
  policy.min_samples = std::max(share(policy.min_samples), policy.min_rounds);
  policy.max_samples = share(options_.samples);
  policy.budget_s = budget_s;
  return policy;
}

void Runner::run(const Task& task, const Port& port) {
  task_ = task;
  label_axes_ = varying_axes(task.cases());
  port_ = &port;
  since_task_ = Stopwatch();
  measured_s_ = sent_s_ = 0;
  run_groups();
  run_duels();
  if (task.last) rates_.raise();
  port.send(rates_.json());
}

void Runner::run_groups() {
  cases_left_ = 0;
  for (const std::vector<Case>& cases : task_.groups) cases_left_ += cases.size();
  int number = 0;
  for (const std::vector<Case>& cases : task_.groups) {
    if (interrupted()) return;
    compile_ahead(cases);
    std::vector<Trial> trials;
    for (const Case& config : cases) {
      if (interrupted()) return;
      if (auto trial = verify(config, number++)) trials.push_back(std::move(*trial));
    }
    if (options_.only_verify) {
      for (Trial& trial : trials) store(std::move(trial.record));
    } else {
      measure(std::move(trials), groups_left_s());
    }
  }
}

bool Runner::judged_cold(const Trial& trial) {
  return !trial.host && trial.plan.work.bound == Bound::memory && rates_.cold_flush();
}

void Runner::measure(std::vector<Trial> trials, double most_s) {
  // Cases about the host have no device times, so they are timed apart from cases with launches.
  const auto of_host =
      std::stable_partition(trials.begin(), trials.end(), [](const Trial& trial) { return !trial.host; });
  if (of_host != trials.begin() && of_host != trials.end()) {
    std::vector<Trial> host(std::make_move_iterator(of_host), std::make_move_iterator(trials.end()));
    trials.erase(of_host, trials.end());
    measure(std::move(trials), most_s / 2);
    return measure(std::move(host), most_s / 2);
  }
  std::erase_if(trials, [&](Trial& trial) {
    std::optional<std::string> reason;
    if (!trial.host && trial.launch_s > options_.max_launch_s) {
      reason = fmt::format("one launch takes {}; {}", milliseconds(trial.launch_s), launch_limit(options_));
      reason = unless_asked_for(reason);
    }
    if (!reason && groups_left_s() <= 0) reason = budget_spent;
    if (!reason) return false;
    store(skipped(std::move(trial.record), *reason));
    return true;
  });
  if (trials.empty()) return;
  const auto any = [&](const auto& is) { return std::any_of(trials.begin(), trials.end(), is); };
  const bool host = any([](const Trial& trial) { return trial.host != nullptr; });
  const bool some_memory_bound = any([&](const Trial& trial) { return judged_cold(trial); });
  const bool phased = any([](const Trial& trial) { return !trial.record.phases.empty(); });
  const CacheFlush* const cold =
      !host && (options_.profile == "full" || some_memory_bound) ? rates_.cold_flush() : nullptr;
  const auto takes_cold = [&](const Trial& trial) {
    return cold && (options_.profile == "full" || judged_cold(trial));
  };

  std::map<CeilingKey, MatrixCeiling> matrix;
  for (const Trial& trial : trials) {
    if (trial.host || trial.plan.work.flops == 0) continue;
    const auto [dtype, length] = ceiling_key(trial);
    matrix.try_emplace({dtype, length}, device_, pipelines_, dtype, rates_.ceilings(), std::exp2(2 * length));
  }
  std::optional<MemoryCeiling> copy, read;
  if (some_memory_bound) {
    copy.emplace(device_, pipelines_, MemoryCeiling::Access::copy, *cold);
    read.emplace(device_, pipelines_, MemoryCeiling::Access::read, *cold);
  }

  const auto left = static_cast<double>(std::max(cases_left_, trials.size()));
  const double share = std::min(most_s, groups_left_s() * static_cast<double>(trials.size()) / left);
  const double for_phases = phased ? phase_share * share : 0;
  const double for_cold = cold ? cold_share * share : 0;

  const Stopwatch stopwatch;
  ClockLog clocks(device_);
  using Subjects = std::vector<std::pair<size_t, Sampler>>;  // indices into `trials`, with their samplers
  // Returns the results of the subjects, followed by the results of the ceilings.
  const auto take_turns = [&](const Subjects& subjects, const std::vector<Sampler>& ceilings,
                              const TimingPolicy& policy) {
    std::vector<Sampler> samplers;
    for (const auto& [trial, sampler] : subjects) {
      samplers.emplace_back([this, number = trials[trial].number, sampler = sampler] {
        port_->activity.at(number);
        return sampler();
      });
    }
    samplers.insert(samplers.end(), ceilings.begin(), ceilings.end());
    return measure_interleaved(samplers, policy, interrupted, [&] { clocks.read(); });
  };
  std::vector<int> launches;
  Subjects hot_subjects, cold_subjects, phase_subjects;
  std::vector<Measured> hot, cold_measured, phases;
  std::string failure;
  try {
    for (size_t i = 0; i < trials.size(); ++i) {
      port_->activity.at(trials[i].number);
      const Trial& trial = trials[i];
      launches.push_back(launches_of_sample(device_, trial));
      if (trial.host) {
        hot_subjects.emplace_back(i, trial.host_sampler());
        continue;
      }
      hot_subjects.emplace_back(i, hot_sampler(device_, *trial.problem, launches.back()));
      if (takes_cold(trial)) cold_subjects.emplace_back(i, cold_sampler(device_, *trial.problem, *cold));
      if (!trial.record.phases.empty()) {
        phase_subjects.emplace_back(i, phase_sampler(device_, *trial.problem, judged_cold(trial) ? cold : nullptr));
      }
    }
    std::vector<Sampler> matrix_samplers, memory_samplers;
    for (const auto& [key, ceiling] : matrix) matrix_samplers.push_back(sampler_of(ceiling));
    if (some_memory_bound) memory_samplers = {sampler_of(*copy), sampler_of(*read)};
    const Rounds& rounds = host ? host_rounds : sweep_rounds;
    TimingPolicy hot_policy = policy(rounds, share - for_cold - for_phases);
    if (host) hot_policy.warmup = 0;  // the host's work was sampled once for the check
    tell("begin", fmt::format("{} in turn, from {}", trials.size(), label(trials.front().config, label_axes_)));
    hot = take_turns(hot_subjects, matrix_samplers, hot_policy);
    if (!cold_subjects.empty()) cold_measured = take_turns(cold_subjects, memory_samplers, policy(rounds, for_cold));
    if (phased) phases = take_turns(phase_subjects, {}, policy(rounds, for_phases));
  } catch (const DeviceLost&) {
    Trial& culprit = *std::ranges::find(trials, port_->activity.at(), &Trial::number);
    guarded(culprit.record, [] { throw; });
    store(std::move(culprit.record));  // does not return
  } catch (const std::exception& error) {
    // The trials took turns, so any of them may have caused the failure.
    failure = first_line(error.what());
  }
  measured_s_ += stopwatch.seconds();

  // Returns the results of a trial's sampler. Returns null if the trial has no sampler among `subjects`, or if an
  // interruption came before the end of the first round.
  const auto found = [](const Subjects& subjects, const std::vector<Measured>& measured,
                        size_t trial) -> const Measured* {
    for (size_t i = 0; i < subjects.size() && i < measured.size(); ++i) {
      if (subjects[i].first == trial && !measured[i].series.empty()) return &measured[i];
    }
    return nullptr;
  };
  const int fewest_rounds = std::min(sweep_rounds.quick, policy(sweep_rounds, 0).min_rounds);
  for (size_t i = 0; i < trials.size(); ++i) {
    Trial& trial = trials[i];
    const Work& work = trial.plan.work;
    if (!failure.empty()) {
      fail(trial.record, "failed", failure);
      store(std::move(trial.record));
      continue;
    }
    const Measured* hot_of = found(hot_subjects, hot, i);
    // If an interruption left the trial too few rounds, the trial is not recorded.
    if (!hot_of || hot_of->series.front().size() < static_cast<size_t>(fewest_rounds)) continue;
    const auto add = [&](const Measured& measured, size_t series, Scope scope) {
      trial.record.time.push_back(summarize(measured.series[series], scope, measured.stop, options_.seed));
    };
    if (!host) add(*hot_of, 0, Scope::device_hot);
    if (const Measured* cold_of = found(cold_subjects, cold_measured, i)) {
      add(*cold_of, 0, Scope::device_cold);
      if (judged_cold(trial)) {
        const auto share_of = [&](size_t turns, const MemoryCeiling& ceiling) {
          return pct_of(cold_measured[cold_subjects.size() + turns].series.front(), ceiling.bytes(),
                        cold_of->series.front(), work.bytes, options_.seed);
        };
        trial.record.copy_pct = share_of(0, *copy);
        trial.record.read_pct = share_of(1, *read);
      }
    }
    add(*hot_of, host ? 0 : 1, Scope::host);
    if (!host && work.flops > 0) {
      const auto ceiling = matrix.find(ceiling_key(trial));
      const Measured& turns = hot[hot_subjects.size() + std::distance(matrix.begin(), ceiling)];
      trial.record.matrix_pct =
          pct_of(turns.series.front(), ceiling->second.flops(), hot_of->series.front(), work.flops, options_.seed);
    }
    if (const Measured* phases_of = found(phase_subjects, phases, i)) {
      for (size_t phase = 0; phase < trial.record.phases.size(); ++phase) {
        trial.record.phases[phase].time =
            summarize(phases_of->series.at(phase), judged_cold(trial) ? Scope::device_cold : Scope::device_hot,
                      phases_of->stop, options_.seed);
      }
    }
    trial.record.clocks = clocks.json();
    if (host) trial.record.values = trial.host->values();
    port_->activity.at(trial.number);
    guarded(trial.record, [&] { check_again(trial); });
    const Timing* main = trial.record.main_timing();
    const Measured* main_of =
        main && main->scope == Scope::device_cold ? found(cold_subjects, cold_measured, i) : hot_of;
    store(std::move(trial.record), launches[i],
          main ? Json{{"scope", name(main->scope)}, {"samples_s", rounded_samples(main_of->series.front())}} : Json());
  }
}

}  // namespace attn
