// Verifies records: do their texts follow from their figures, do findings agree with each other, and were today's
// kernels measured?
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/source/kernel_source.h"
#include "findings/kb/runs.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// Checks one record by itself and returns its problems. Checks schema, units and id of every record, but nothing else
/// if the record does not follow the schema. For measurements: also intervals and rates. For findings: also intervals,
/// texts (rendered again), and verdict, confidence and claim_key (computed again), by the rules of their schema. For
/// finding/2, the second format of findings: also the estimate and the ratio, pooled again from their parts.
std::vector<std::string> verify_record(const Record& record);
/// Checks one record, for a caller that has record.json() already.
std::vector<std::string> verify_record(const Record& record, const Json& json);

struct Problem {
  std::string id, text;
};

/// Why findings of one claim have opposite verdicts.
enum class Opposition {
  spread,         // runs with the same code and conditions have opposite verdicts, but their figures differ only as
                  // expected: all lie in the interval for the next run that follows from pooling these runs
  changed,        // the runs with one verdict had other code or other conditions than the runs with the other verdict
  contradiction,  // neither the spread nor other code or conditions explain the opposite verdicts
};

/// The findings of one claim, if at least one of them is supported and one is refuted.
struct Contradiction {
  std::string claim_key;  // pooling_key()
  std::vector<Record> findings;
  Opposition why = Opposition::contradiction;
};
/// Returns why these findings of one claim, some supported and some refuted, are opposite.
Opposition opposition(const std::vector<Record>& findings, const Codes& codes);

struct Verification {
  int64_t records = 0;
  std::vector<Problem> problems;
  std::vector<Contradiction> contradictions;  // Opposition::contradiction
  std::vector<Contradiction> explained;       // Opposition::spread and Opposition::changed
  // Findings with at least one kernel that has other code today. A finding whose claim has a fresh finding of the same
  // time or later is not stale, but superseded.
  std::vector<Problem> stale;
  int64_t fresh = 0;       // number of findings with at least one of today's kernels, and without a changed kernel
  int64_t superseded = 0;  // number of findings with changed kernels, but not stale
  int64_t unknown = 0;  // number of findings without kernels, and of findings whose kernels are all Freshness::unknown

  int64_t explained_by(Opposition why) const;
};

Verification verify(const Store& store);

/// Maps the hash of a recorded kernel source to the hash of a later source that gives the same machine code.
using SameCode = std::map<std::string, std::string>;
/// Returns the hashes in findings/same_code.txt of the source tree.
SameCode same_code();

/// The kernel sources of the tree (source_root()). Each file is read once, searched once for each entry, and expanded
/// once.
class KernelTexts {
 public:
  KernelTexts();
  bool empty() const { return files_.empty(); }
  /// Finds the files of a source and of its fragments, because a record's key does not name the files. Sets the paths
  /// of the source and its fragments to files with which the source has the hash `sha256`. Returns false if no files
  /// give the source this hash.
  bool name_files(KernelSource& source, const std::string& sha256);

 private:
  bool name_files_from(size_t at, KernelSource& source, const std::string& sha256);
  const std::vector<std::string>& files_with(const std::string& entry);
  const std::string& expanded_once(const KernelSource& source);  // the source must have no replaced headers

  std::vector<SourceFile> files_;
  std::map<std::string, std::vector<std::string>> with_entry_;  // the paths of the files that define an entry
  std::map<std::string, std::string> expanded_;                 // expanded_text() by path
};

/// Says whether the source tree (source_root()) still has the source of a record's pipeline, or, by `same`, a source
/// with the same machine code. unknown: the pipeline's key does not describe the whole source, or there is no source
/// tree.
enum class Freshness { current, changed, unknown };
Freshness freshness(const Json& pipeline, const SameCode& same = {});

}  // namespace attn::kb
