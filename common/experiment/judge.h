// Judges a run: findings, and what the run prints at its end. The Judge owns nothing but the claims and the moment at
// which the run began; it reads what the other parts of the run own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/experiment/busy.h"
#include "common/experiment/comparisons.h"
#include "common/experiment/experiment.h"
#include "common/experiment/record.h"
#include "common/experiment/selection.h"
#include "common/experiment/task.h"

namespace attn {

class Judge {
 public:
  Judge(const Given& given, const Selection& selection, Recorder& recorder, const Tasks& tasks,
        const Comparisons& comparisons)
      : given_(given),
        selection_(selection),
        recorder_(recorder),
        tasks_(tasks),
        comparisons_(comparisons),
        claims_(given.spec.claims ? given.spec.claims(given.info) : std::vector<Claim>()) {}

  const std::vector<Claim>& claims() const { return claims_; }
  /// Writes the findings, and prints the table, the verdicts and the answer. Returns the exit status.
  int conclude(const std::vector<Conclusion>& conclusions);
  /// Prints the replayed measurement and the new one, which is the last result. Returns the exit status.
  int compare_with_replayed();
  /// The table of the results; with --csv, the same results as CSV.
  std::string table_text() const;

 private:
  /// The findings of the conclusions, which are recorded, and those that --resume has taken over.
  std::vector<Json> findings_of(const std::vector<Conclusion>& conclusions);
  /// Judges one conclusion, and returns its finding. Records the finding, unless `known` (the records of the findings
  /// file) has a finding of this run with the same claim_key.
  Json find(const Conclusion& conclusion, const std::vector<Json>& known);
  /// The line that stands before the findings of this run (run/1).
  Json header();
  /// Says that other programs used the machine during this run, up to the first call; empty if they did not.
  const std::string& loaded();
  /// Whether an emulator ran the kernels.
  bool emulated() const;
  /// The hash of the machine code of each kernel that the case launched.
  Json code_of(const Case& config) const;
  std::string run_id() const { return recorder_.run().at("id"); }
  std::string verdicts_text(const std::vector<Json>& findings) const;
  /// The table of decisions by this run (common/records/decisions.h), with the run's id, the numbers of results by
  /// status, the disturbances of the run, and the paths of the files of records.
  Json answer_json(const std::vector<Json>& findings);
  /// What a run prints at its end: verdicts, warnings, answer, and the commands for a report and a replay.
  std::string end_text(const Json& answer, const std::string& verdicts) const;
  int exit_status() const;
  /// The commonest reason why cases were skipped, if no case of this run could run; else nothing.
  std::optional<std::string> nothing_ran() const;

  const Given given_;
  const Selection& selection_;
  Recorder& recorder_;
  const Tasks& tasks_;
  const Comparisons& comparisons_;
  const std::vector<Claim> claims_;
  const CoreTimes started_ = core_times();
  std::optional<std::string> loaded_;
};

}  // namespace attn
