#include "common/experiment/busy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/platform.h"
#include "common/base/text_table.h"

namespace attn {
namespace {

constexpr double steady_cv = 0.25;      // samples on a quiet machine have a smaller CV
constexpr double steady_floor = 0.05;   // on a quiet machine two times of one case differ by less
constexpr double little_overlap = 0.1;  // the share of a run's cores that other programs may use

double used_s(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

std::string sign_of_others(const DeviceInfo& device, int cores, double others) {
  const int units = static_cast<int>(device.units);
  const double overlap = others + units - cores;  // cores that both the run and other programs used
  if (!device.on_host || cores <= 0 || units > cores || overlap <= little_overlap * units) return "";
  return fmt::format("other programs used {:.1f} of {} cores", others, cores);
}

CoreTimes core_times() {
  const auto at = std::chrono::steady_clock::now();
  const double own_s = used_s(RUSAGE_SELF) + used_s(RUSAGE_CHILDREN) + descendants_cpu_s();
  const BusyCores busy = busy_cores();
  return {.cores = busy.cores, .busy_s = busy.busy_s, .own_s = own_s, .at = at};
}

double others(const CoreTimes& begin, const CoreTimes& end) {
  const double elapsed = std::chrono::duration<double>(end.at - begin.at).count();
  if (begin.cores == 0 || begin.cores != end.cores || elapsed <= 0) return 0;
  return std::max(0.0, ((end.busy_s - begin.busy_s) - (end.own_s - begin.own_s)) / elapsed);
}

std::string disturbance(const DeviceInfo& device, const Measurement& result, int cores, double others) {
  const Timing* time = result.main_timing();
  if (!time) return "";
  std::string text = sign_of_others(device, cores, others);
  if (time->cv > steady_cv) {
    text += fmt::format("{}the samples scatter by {:.0f} % (cv)", text.empty() ? "" : "; ", 100 * time->cv);
  }
  return text;
}

std::vector<std::string> disturbances(const DeviceInfo& device, const std::vector<Measurement>& results,
                                      const std::vector<Comparison>& comparisons, int cores, double others) {
  const int units = static_cast<int>(device.units);
  std::vector<std::string> lines;
  if (device.on_host && cores > 0 && units > cores) {
    lines.push_back(fmt::format("{} threads on {} core{}: threads wait for each other; use --device cpu:threads={}",
                                units, cores, cores == 1 ? "" : "s", cores));
  }
  std::vector<std::string> signs;
  if (std::string sign = sign_of_others(device, cores, others); !sign.empty()) signs.push_back(std::move(sign));
  size_t timed = 0, unsteady = 0;
  double worst = 0;
  for (const Measurement& result : results) {
    if (!result.main_timing()) continue;
    ++timed;
    unsteady += result.main_timing()->cv > steady_cv;
    worst = std::max(worst, result.main_timing()->cv);
  }
  if (unsteady > 0) {
    signs.push_back(fmt::format("the samples of {} of {} scatter by up to {:.0f} % (cv)", unsteady,
                                counted(timed, "case"), 100 * worst));
  }
  const auto apart =
      std::ranges::count_if(comparisons, [](const Comparison& one) { return one.aa_floor() > steady_floor; });
  if (apart > 0) {
    signs.push_back(fmt::format("in {} of {} two times of one case differ by more than {:.0f} %", apart,
                                counted(comparisons.size(), "comparison"), 100 * steady_floor));
  }
  if (!signs.empty()) {
    lines.push_back(fmt::format("the machine was busy: {}; measure again when it is quiet", fmt::join(signs, "; ")));
  }
  size_t throttled = 0;
  std::set<std::string> reasons;
  for (const Measurement& result : results) {
    if (!result.clocks.is_object()) continue;
    const Json own = result.clocks.value("throttle_reasons", Json::array());
    throttled += !own.empty();
    for (const Json& reason : own) reasons.insert(reason.get<std::string>());
  }
  if (throttled > 0) {
    lines.push_back(fmt::format("the device throttled in {} of {} cases ({})", throttled, results.size(),
                                fmt::join(reasons, ", ")));
  }
  return lines;
}

}  // namespace attn
