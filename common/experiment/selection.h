// What a run measures: the cases of the command line or of a replayed record, their plans, and what --resume finds of
// an earlier run. The Selection owns them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/experiment/record.h"

namespace attn {

/// The plans of cases. Each plan is made once in a process, and kept.
class Plans {
 public:
  Plans(const ExperimentSpec& spec, Setting setting) : spec_(spec), setting_(std::move(setting)) {}
  const CasePlan& operator()(const Case& config);

 private:
  const ExperimentSpec& spec_;
  const Setting setting_;
  std::unordered_map<std::string, CasePlan> plans_;  // by the case's key
};

/// Looks for the record whose id starts with options.replay: in the measurements file and in the findings file, else in
/// findings/recorded of the source tree. Returns the record, and sets the options to the values of the record's run;
/// null without --replay. Throws BadInput, for example if there is no such record, or more than one.
Json find_replayed(Options& options, const ExperimentSpec& spec);
/// Sets device, seed, profile, threadgroup memory and files to those of a record's run. Throws BadInput if a file has
/// changed.
void take_conditions(Options& options, const ExperimentSpec& spec, const Json& run);
/// The description of a new run.
Json new_run(const Given& given, const Json& replayed);

/// "at most 500 ms are allowed": the end of the reason of a case whose launch is too long.
std::string launch_limit(const Options& options);
/// "12 ms".
std::string milliseconds(double seconds);

/// The cases of a conclusion's measurements and comparison, so that a replay can run them.
std::vector<Case> cases_of(const Conclusion& conclusion, const std::vector<Measurement>& results);

class Selection {
 public:
  /// Plans all cases: throws BadInput for a case that no device can run, before time is spent.
  Selection(const Given& given, Plans& plans, Json replayed);

  const std::vector<std::vector<Case>>& groups() const { return groups_; }
  std::vector<Case> cases() const;
  bool replays() const { return !replayed_.is_null(); }
  bool replays_finding() const;
  /// The record that --replay names, else null.
  const Json& replayed() const { return replayed_; }
  /// The pair that the replayed finding compared; empty where the finding compared no pair.
  std::vector<Duel> replayed_duels() const;
  /// Whether the run wants a finding about a hypothesis (and subject): a replay wants at most one.
  bool wants(const std::string& hypothesis, const std::optional<std::string>& subject = {}) const;

  /// Takes over the records of an earlier run with the same code and conditions, its findings, and its id.
  void resume(Recorder& recorder);
  /// Takes over the case's record of the run that --resume continues. Returns whether there is such a record.
  bool take_over(Recorder& recorder, const Case& config);
  /// The comparison of this pair in the run that --resume continues, or null.
  const Comparison* compared_before(const Duel& pair) const;
  size_t pairs_compared_before() const { return compared_before_.size(); }
  /// The findings of the run that --resume continues.
  const std::vector<Json>& findings_before() const { return findings_before_; }
  /// Whether each hypothesis of `asked` that asks for this pair has a finding about it.
  bool is_judged(const Duel& pair, const std::vector<Duel>& asked) const;
  /// Whether a finding that --resume has taken over judges the conclusion's cases and others. The conclusion then has
  /// only some of the finding's pairs, so the finding stands.
  bool is_part_of_judged(const Conclusion& conclusion, const std::vector<Measurement>& results) const;
  /// cases_of_claims() without cases that --resume need not measure again.
  std::vector<Case> cases_to_repeat(const std::vector<Claim>& claims, const std::vector<Measurement>& results) const;

 private:
  void resume_findings(Recorder& recorder);
  bool is_judged(const std::string& hypothesis, const std::vector<Case>& cases) const;
  /// Whether --resume can take over the record, so that its case is not measured again.
  bool is_done(const Measurement& record);
  /// Whether the plan has the kernels of the record, with the same source code.
  bool is_current(const Measurement& record, const Plan& plan);

  const Given given_;
  Plans& plans_;
  const Json replayed_;
  std::vector<std::vector<Case>> groups_;
  std::unordered_map<KernelSource, std::string, KernelSourceHash> source_hashes_;
  std::map<std::string, Measurement> recorded_before_;  // by the key of the case in_order()
  std::vector<Comparison> compared_before_;             // each pair once
  std::vector<Json> findings_before_;
};

}  // namespace attn
