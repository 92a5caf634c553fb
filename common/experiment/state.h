// The state of an Experiment. Each step of the loop has a file. Private to common/experiment.
//   selection.cpp  the command line's selection, --resume and --replay
//   verify.cpp     makes, launches and checks a case
//   measure.cpp    times cases, which take turns
//   record.cpp     writes the measurement of a case
//   compare.cpp    compares pairs of cases
//   parts.cpp      compares pairs, and measures cases again, in other processes
//   watch.cpp      runs all of this in a worker process
//   conclude.cpp   judges, writes findings, prints the table
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "common/base/error.h"
#include "common/base/stopwatch.h"
#include "common/experiment/busy.h"
#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"
#include "common/experiment/report.h"
#include "common/experiment/table.h"
#include "common/experiment/watch.h"

namespace attn {

/// Thrown to end a run after an interruption, once the measurements are recorded.
struct Interrupted {};

/// Thrown to end a run whose device is lost, once the case that lost the device is recorded. A new process goes on with
/// the other cases, except in a replay or if State::can_go_on() is false.
struct Restart {};

/// Whether the process received SIGINT or SIGTERM.
bool interrupted();

/// The reason in the record of a case that the budget did not reach. --resume measures such a case.
inline constexpr const char* budget_spent = "budget spent";

/// The first words of the reason in the record of a case that lost the device or ended its worker. --resume does not
/// run this case again, because the case might end in the same way.
inline constexpr const char* device_lost = "device lost: ";

/// The fields in which a record's `run` must equal this run. --resume does not take over a record that differs.
inline constexpr const char* conditions[] = {"device", "seed", "profile", "threadgroup_memory_bytes", "input", "files"};

/// The fields of a record's `run` that must equal this run's session. If one differs, --resume throws BadInput, because
/// the run would go on with other code, or on another machine.
inline constexpr const char* session_fields[] = {"commit", "diff", "machine"};

/// Other programs that use the device slow it by up to this factor.
inline constexpr double most_slowed = 4;

/// The least number of rounds in each profile.
struct Rounds {
  int quick, full;
};

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The name of the hardware in records. The name includes the number of units, because a device may be a part of a
/// machine (two of its threads, for example).
std::string device_name(const DeviceInfo& info);

/// Sets the status and the reason of a record whose case was skipped or failed, and removes the record's times.
void fail(Measurement& record, std::string status, std::string reason);

struct Experiment::State {
  State(Experiment& owner, ExperimentSpec experiment, Options given);

  // selection.cpp
  bool replays_measurement() const;
  bool replays_finding() const;
  /// The plan of a case. Each plan is made once and kept.
  const CasePlan& plan(const Case& config);
  std::string replay_command() const;
  /// Opens the files of measurements and findings (in a part: of its results), takes over the records that --resume
  /// finds, and prints how many cases are to come.
  void open_records();
  /// The command line that goes on with this run.
  std::vector<std::string> resuming() const;
  void resume();
  /// Prints the problems that read_records() found in a file.
  void note_problems(const std::string& path, const std::vector<std::string>& problems);
  /// Takes over the case's record of the run that --resume continues. Returns whether there is such a record.
  bool takes_over(const Case& config);
  /// Takes over those findings of the run whose measurements --resume has taken over, and their comparisons.
  void resume_findings();
  /// Whether a finding judges this hypothesis on these cases, and maybe on others.
  static bool judges(const Json& finding, const std::string& hypothesis, const std::vector<Case>& cases);
  /// Whether a finding that --resume has taken over judges this hypothesis on these cases. Then the cases need not be
  /// measured again for this hypothesis.
  bool is_judged(const std::string& hypothesis, const std::vector<Case>& cases) const;
  /// Whether is_judged() holds for each hypothesis in `asked` that asks for this pair.
  bool is_judged(const Duel& pair, const std::vector<Duel>& asked) const;
  /// cases_of_claims() without cases that need not be measured again.
  std::vector<Case> cases_to_repeat() const;
  /// If --resume has found nothing to measure, says so.
  void note_if_complete();
  /// Whether --resume can take over the record, so that its case is not measured again.
  bool is_done(const Measurement& record);
  /// Whether the plan has the kernels of the record, with the same source code.
  bool is_current(const Measurement& record, const Plan& plan);

  /// note_cases() tells the process that watches this process which cases this process works on. at_case() then tells
  /// the index of the case that is running, or -1 if none is running.
  void note_cases(const std::vector<Case>& cases);
  void at_case(int number);
  /// Tells the process that watches this process that a step of a case is done.
  void progressed();
  /// The memory that this process shares with the process that watches it; null where nothing watches this process.
  Activity* activity();
  /// After this many seconds without progress, this process or a part of the run counts as hung, and is ended.
  double most_silent_s() const;
  /// Records the case that ended the previous worker, if there is one.
  void store_lost();

  // verify.cpp
  /// Compiles the kernels of the cases, several at once. Ignores errors, because verify() meets them
  /// again, and records them.
  void compile_ahead(const std::vector<Case>& cases);
  /// Makes and checks the trial of a case. For a case that cannot be measured, stores the record and returns nothing.
  std::optional<Trial> verify(const Case& config);
  Trial new_trial(const Case& config);
  void make(Trial& trial) { make(trial, spec.make); }
  void make(Trial& trial, const decltype(ExperimentSpec::make)& make_problem);
  /// Runs the plan once on poisoned outputs (or takes one sample of the host's work), and checks the outputs. Problems
  /// may share their outputs, so no other problem may run before the check.
  void launch_and_check(Trial& trial);
  /// Launches a trial again if its launch was too long, and keeps the shortest time, because other programs may have
  /// slowed the launch.
  void launch_again(Trial& trial);
  /// Checks a trial again after timing. If the trial has launches, this function runs the plan once more and checks the
  /// outputs. Work of the host is checked without another sample, which might take long.
  void check_again(Trial& trial);
  /// Takes a kernel from the cache, or compiles it. In a worker, a CompilationLimit holds for the compilation of a
  /// user's text.
  const Pipeline& pipeline(const KernelSource& source);
  Json pipeline_json(const Launch& launch);
  /// Runs a step of a case. An exception becomes the status of the record, except BadInput and DeviceMissing.
  void guarded(Measurement& record, const std::function<void()>& step);
  /// Does what fail() does, for a case that lost the device. A kernel that faults on the host may have overwritten any
  /// data of this process. So after a fault on the host the worker ends, and the next worker records the case.
  void fail_lost(Measurement& record, const DeviceLost& error) const;

  // measure.cpp
  /// Measures for at most `most_s` seconds.
  void measure(std::vector<Trial> trials, double most_s);
  double budget_left() const { return options.budget(device->info()) - measured_s; }
  /// The seconds that the sweep may still take. The rest of the budget is for comparisons.
  double sweep_budget() const;
  TimingPolicy policy(const Rounds& rounds, double budget_s) const;
  /// "at most 500 ms are allowed": the end of the reason of a case whose launch is too long.
  std::string launch_limit() const;
  /// The reason why a launch of this work takes longer than --max-launch even at the device's ceiling; nothing if the
  /// launch may be short enough. Measures the ceilings several times before it gives a reason.
  std::optional<std::string> too_long(const Work& work);
  /// Returns the reason why a case is too long, if any. If the user asked for this case alone (`asked_for`), warns of
  /// the reason, and returns nothing.
  std::optional<std::string> unless_asked_for(const std::optional<std::string>& reason);
  /// The reason why the tensors and the oracle of a plan do not fit in the memory that is free; nothing if they fit.
  std::optional<std::string> too_large(const CasePlan& plan) const;
  /// The reason why the case cannot run, from too_large() or else from too_long(); nothing if the case may run. If only
  /// a limit of the work is known (CasePlan::work_is_limit), too_long() is not called.
  std::optional<std::string> foreseen(const CasePlan& plan);
  const Ceilings& measured_ceilings();
  /// Measures the ceilings. If --samples is below its default, the measurement takes proportionally less time.
  Ceilings new_ceilings();
  /// Measures the ceilings again, and keeps the larger value of each ceiling.
  void raise_ceilings();
  /// Returns the record as JSON. If a rate is more than 5 % above its ceiling, the ceilings are measured again, because
  /// other programs may have slowed their measurement. If the rate stays above its ceiling, the record has no shares of
  /// ceilings. If the rate stays above four times its ceiling, or if a number of the record is not finite, the case
  /// counts as failed.
  Json within_ceilings(Measurement& record);
  /// The flush for cold samples; null where the flush has no memory or fails its self-test.
  const CacheFlush* cold_flush();
  int launches_per_sample(const Trial& trial);
  /// Whether the case is judged by its time with cold caches.
  bool judged_cold(const Trial& trial);

  // record.cpp
  Measurement blank(const Case& config) const;
  /// Writes and keeps the record of a case that is finished, and the samples of its main time. Throws Restart where the
  /// case lost the device.
  void store(Measurement record, int launches_per_sample = 1, const Json& samples = nullptr);
  void store_skipped(Measurement record, std::string reason);
  /// Runs a step that writes to a file of records. If the file cannot be written, the run says so once, goes on, prints
  /// its results, and ends with status 1.
  void keep(const std::function<void()>& write);
  /// Whether another process can go on with this run. That process needs the records of this process: without the
  /// record of a case that ended a process or lost the device, that process would run this case again.
  bool can_go_on() const {
    std::error_code none;
    return !unwritten && std::filesystem::is_regular_file(options.measurements_path, none);
  }
  /// "5 cases are kept in measurements.jsonl".
  std::string kept() const;
  /// Appends a record samples/1 to the file of samples: `what` names the case or the pair. `process` is 0 for samples
  /// of the sweep, else the number (from 1) of the process that measured the pair, or measured the case again.
  void keep_samples(int process, const Json& what, const Json& samples);
  void print_json(const Json& json) const;
  /// The axes in which the cases of this run differ, with the values of this case. For progress messages.
  std::string label(const Case& config) const;

  // compare.cpp
  /// Returns the pairs of the duels whose cases were both measured. Each pair comes once, also if several hypotheses
  /// ask for it.
  std::vector<Duel> pairs_of(const std::vector<Duel>& asked) const;
  /// Keeps a comparison for each hypothesis that asked for its pair, in place of an earlier comparison.
  void keep_comparison(const Comparison& comparison, const std::vector<Duel>& asked);
  /// Compares in this process, with at most `budget_s` seconds for all duels. Pairs in `compared_before` take no time.
  void compare_each(const std::vector<Duel>& duels, double budget_s);
  /// Compares one pair in this process, and prints its line of progress.
  std::optional<Comparison> compare_now(const Duel& duel, double budget_s);
  /// The line of progress of a comparison.
  std::string describe(const Comparison& comparison) const;
  /// The samples of one pair. Empty where a result was wrong or a step failed, or after an interruption. Wrong results
  /// and failures are recorded.
  std::optional<PairSamples> sample_pair(const Duel& duel, double budget_s);
  /// The pair that the replayed finding compared; empty where the finding compared no pair.
  std::vector<Duel> replayed_duels() const;
  bool was_measured(const Case& config) const;

  // parts.cpp
  /// Compares the duels, and measures the cases of the claims again, in separate processes. With one process: compares
  /// in this process, and measures no case again.
  void measure_in_processes(const std::vector<Duel>& duels);
  struct Task;
  struct PartResults;
  /// Measures the task in process `number` of `count`.
  PartResults measure_in_process(int number, int count, Task task);
  /// The command line of a process with the task in the file `task_path`.
  std::vector<std::string> part_arguments(const std::string& task_path) const;
  /// Reads the results file of a process: adds the results to `found`, records the failures, and removes from `left`
  /// what need not be measured again. Returns whether the file had a line.
  bool take_results(const std::string& path, Task& left, PartResults& found);
  /// Pools the figures of each pair from all processes that measured the pair, for the duels `asked`.
  void pool_pairs(const std::vector<PartResults>& parts, const std::vector<Duel>& pairs,
                  const std::vector<Duel>& asked);
  /// Does the work of a process that has a task (--part). Returns the exit status.
  int run_part();

  // conclude.cpp
  int conclude(const std::vector<Conclusion>& conclusions);
  /// Measures the replayed measurement's case again, and prints the old and the new result. Returns the exit status.
  int replay_measurement();
  /// Judges one conclusion, and returns its finding. Records the finding, unless `known` (the records of the findings
  /// file) has a finding of this run with the same claim_key.
  Json find(const Conclusion& conclusion, const std::vector<Json>& known);
  /// The line that stands before the findings of this run (run/1).
  Json header();
  /// The cases of a conclusion's measurements and comparison, so that a replay can run them.
  std::vector<Case> cases_of(const Conclusion& conclusion) const;
  /// The hash of the machine code of each kernel that the case launched.
  Json code_of(const Case& config) const;
  Json environment();
  bool in_replay(const Conclusion& conclusion) const;
  /// Whether a finding that --resume has taken over judges the conclusion's cases and others. The conclusion then has
  /// only some of the finding's pairs, so the finding stands.
  bool is_part_of_judged(const Conclusion& conclusion) const;
  /// The answer (answer.h), with the name of the experiment, the run's id, the disturbances of the run, and the paths
  /// of the files of records.
  Json answer_json(const std::vector<Json>& findings);
  /// The table of the results; with --csv, the same results as CSV.
  std::string table_text() const;
  /// What a run prints at its end: verdicts, warnings, answer, and the commands for a report and a replay.
  std::string end_text(const Json& answer, const std::string& verdicts) const;
  int exit_status() const;
  /// The commonest reason why cases were skipped, if no case of this run could run; else nothing.
  std::optional<std::string> nothing_ran() const;

  Experiment& lab;
  std::unique_ptr<Device> device;
  std::unique_ptr<PipelineCache> pipelines;
  const ExperimentSpec spec;  // destroyed before the device, because `make` may keep buffers
  /// A copy of spec.make that keeps its own inputs. In a comparison this copy makes A', the baseline that is measured
  /// again. So A' shares no tensors with A, the baseline.
  const decltype(ExperimentSpec::make) make_apart;
  Options options;
  Progress progress;
  Json replayed;  // the record that --replay names, else null
  Json run;       // the description of this run in records
  Json session;   // session() of environment.h
  std::vector<Claim> claims;
  std::vector<Hypothesis> hypotheses;  // the hypotheses of `claims`
  std::optional<CacheFlush> flush;
  std::optional<FlushTest> flush_test;
  std::optional<Ceilings> ceilings;
  std::vector<std::vector<Case>> groups;
  std::unordered_map<std::string, CasePlan> plans;  // by the case's key
  std::vector<std::string> label_axes;
  size_t cases_left = 0, cases_resumed = 0;
  int ceilings_measured = 0;  // how often
  bool asked_for = false;     // the run has --input or --dump-output, and one case
  bool unwritten = false;     // a record could not be written
  bool part_failed = false;   // a process that repeats measurements was ended, ended with an error, or did not start
  double measured_s = 0;
  CoreTimes started = core_times();
  std::optional<RecordFile> measurement_file, finding_file, sample_file;
  std::unordered_map<KernelSource, std::string, KernelSourceHash> source_hashes;
  std::set<std::string> compiler_messages;            // already shown
  std::map<std::string, CodeContents> code_contents;  // by code_sha256
  std::vector<Measurement> results;
  std::map<std::string, Measurement> recorded_before;  // by the key of the case in_order(): --resume may take them over
  std::vector<Comparison> compared_before;             // comparisons of the run that --resume continues, each pair once
  std::vector<Json> findings_before;                   // the findings of the run that --resume continues
  std::vector<Comparison> comparisons;
  Processes processes;
  PartRunner run_part_process;
  Json part;                              // the task of this process; null in a run that a user starts
  std::optional<RecordFile> part_file;    // where a part writes its results
  std::optional<Activity> part_activity;  // what this part does, for the process that started it
};

}  // namespace attn
