// What an Experiment keeps: the parts of the loop, one file each. Private to common/experiment.
//   selection.cpp  the command line's selection, --resume and --replay
//   verify.cpp     makes, launches and checks a case
//   measure.cpp    times cases in turn
//   record.cpp     writes the measurement of a case
//   compare.cpp    measures pairs
//   conclude.cpp   judging, findings, table
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/error.h"
#include "common/base/stopwatch.h"
#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"
#include "common/experiment/report.h"

namespace attn {

/// Ends a run after an interruption, once what was measured is recorded.
struct Interrupted {};

/// Ends a run whose device is lost, once the case that lost it is recorded: a new process goes on with the others.
struct Restart {};

/// Whether SIGINT or SIGTERM came.
bool interrupted();

/// Reason of a case that was not reached; --resume takes it up again.
inline constexpr const char* budget_spent = "budget spent";

/// How the reason of a case begins that lost the device; --resume does not take it up, it would only do so again.
inline constexpr const char* device_lost = "device lost: ";

/// The fields of a record's `run` under which a case is measured the same way again.
inline constexpr const char* conditions[] = {"device", "seed", "profile", "threadgroup_memory_bytes", "input", "files"};

/// How many rounds a profile takes at least.
struct Rounds {
  int quick, full;
};

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Names the hardware in records. The units tell a part of a machine (two of its threads, say) from all of it.
std::string device_name(const DeviceInfo& info);

/// Ends a case that has no times to show.
void fail(Measurement& record, std::string status, std::string reason);
/// The same, of a case that lost the device.
void fail_lost(Measurement& record, const DeviceLost& error);

/// Of duels and comparisons: whether both are about the same two cases.
bool same_pair(const auto& a, const auto& b) { return a.baseline == b.baseline && a.contender == b.contender; }

struct Experiment::State {
  State(Experiment& owner, ExperimentSpec experiment, Options given);

  // selection.cpp
  bool replays_measurement() const;
  bool replays_finding() const;
  /// Planned once, and kept.
  const CasePlan& plan(const Case& config);
  std::string replay_command() const;
  /// Opens both files, takes over what --resume finds, and says what is to come.
  void open_records();
  void resume();
  /// Takes over the pairs in findings about the measurements that --resume found.
  void resume_comparisons();
  bool is_done(const Measurement& record);
  /// Whether the record's kernels, all of them, are what the plan has today.
  bool is_current(const Measurement& record, const Plan& plan);

  // verify.cpp
  /// Compiles what the cases launch, several kernels at once. A kernel that does not compile is left to its case.
  void compile_ahead(const std::vector<Case>& cases);
  /// A case that may be measured, or nothing: then its record is stored.
  std::optional<Trial> verify(const Case& config);
  Trial new_trial(const Case& config);
  void make(Trial& trial);
  /// One launch on poisoned outputs (or one sample of the host's work), and the check of what it wrote. Problems may
  /// share their outputs, so nothing may run between the two.
  void launch_and_check(Trial& trial);
  /// The check once more, after timing. What the host did is not done again for it, since that may take long.
  void check_again(Trial& trial);
  Json pipeline_json(const Launch& launch);
  /// Runs a step of a case; what goes wrong in it becomes the status of its record.
  void guarded(Measurement& record, const std::function<void()>& step);

  // measure.cpp
  /// With at most so many seconds.
  void measure(std::vector<Trial> trials, double most_s);
  double budget_left() const { return options.budget(device->info()) - measured_s; }
  /// What the sweep may still take; the rest is for comparisons.
  double sweep_budget() const;
  TimingPolicy policy(const Rounds& rounds, double budget_s) const;
  const Ceilings& measured_ceilings();
  /// Measures the ceilings again; the better of both counts.
  void raise_ceilings();
  /// The record. A rate may be above a ceiling that was measured in bad moments: then the ceilings are raised. A
  /// record whose rate stays above its ceiling fails.
  Json within_ceilings(Measurement& record);
  /// The flush for cold samples; null where its self-test fails.
  const CacheFlush* cold_flush();
  int launches_per_sample(const Trial& trial);
  /// Whether the case is judged by its time with cold caches.
  bool judged_cold(const Trial& trial);

  // record.cpp
  Measurement blank(const Case& config) const;
  /// Writes and keeps the record of a case that is finished. Throws Restart where it lost the device.
  void store(Measurement record, int launches_per_sample = 1);
  void store_skipped(Measurement record, std::string reason);
  void print_json(const Json& json) const;
  /// What tells a case from the others of this run, for progress.
  std::string label(const Case& config) const;

  // compare.cpp
  void compare(const std::vector<Duel>& duels);
  /// With at most so many seconds for all of them; what was compared before takes none.
  void compare_each(const std::vector<Duel>& duels, double budget_s);
  /// One of them, with its line of progress.
  std::optional<Comparison> compare_now(const Duel& duel, double budget_s);
  /// Nothing where a result was wrong or something failed: that is recorded.
  std::optional<Comparison> compare(const Duel& duel, double budget_s);
  /// The pair that the finding under replay compared, if it did.
  std::vector<Duel> replayed_duels() const;
  bool was_measured(const Case& config) const;

  // conclude.cpp
  int conclude(const std::vector<Conclusion>& conclusions);
  /// Measures the replayed measurement's case again and shows both. Returns the exit status.
  int replay_measurement();
  /// Judges and records one conclusion; `known` are the findings recorded before. Returns the finding.
  Json find(const Conclusion& conclusion, const std::vector<Json>& known, const Json& env);
  Json cases_of(const Conclusion& conclusion) const;
  Json environment();
  bool in_replay(const Conclusion& conclusion) const;
  int exit_status() const;

  Experiment& lab;
  std::unique_ptr<Device> device;
  std::unique_ptr<PipelineCache> pipelines;
  const ExperimentSpec spec;  // goes before the device: its `make` may keep buffers
  Options options;
  Progress progress;
  Json replayed;  // the record that --replay names, else null
  Json run;       // what a finding says of this run
  std::vector<Claim> claims;
  std::vector<Hypothesis> hypotheses;  // of the claims
  std::optional<CacheFlush> flush;
  std::optional<FlushTest> flush_test;
  std::optional<Ceilings> ceilings;
  std::vector<std::vector<Case>> groups;
  std::unordered_map<std::string, CasePlan> plans;  // by the case's key
  std::vector<std::string> label_axes;
  size_t cases_left = 0;
  double measured_s = 0;
  std::optional<RecordFile> measurement_file, finding_file;
  std::unordered_map<KernelSource, std::string, KernelSourceHash> source_hashes;
  std::set<std::string> compiler_messages;            // that were shown
  std::map<std::string, CodeContents> code_contents;  // by code_sha256
  std::vector<Measurement> results;
  std::vector<Comparison> compared_before;  // by the run that --resume goes on with, each pair once
  std::vector<Comparison> comparisons;
};

}  // namespace attn
