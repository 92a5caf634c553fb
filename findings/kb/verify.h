// Verifies records: do their texts follow from their figures, do findings agree, and were today's kernels measured?
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "findings/kb/runs.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// Checks one record by itself and returns its problems. Checks schema, units and id, and computes again what follows
/// from other fields, for example the rates of a measurement and the verdict of a finding. A record that does not
/// follow the schema is not checked further.
/// `json` is record.json().
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

/// Findings of one claim, with at least one supported and one refuted.
struct OpposedClaim {
  std::string claim_key;
  std::vector<Record> findings;
  Opposition why = Opposition::contradiction;
};

struct Verification {
  int64_t records = 0;
  std::vector<Problem> problems;
  std::vector<OpposedClaim> opposed;
  // Findings with at least one changed kernel, and without a fresh finding of their claim at the same time or later.
  std::vector<Problem> stale;
  int64_t fresh = 0;       // findings whose kernels all are today's
  int64_t superseded = 0;  // findings with changed kernels that are not stale
  int64_t unknown = 0;  // findings without kernels, or with a kernel that is Freshness::unknown and none that changed

  int64_t count(Opposition why) const;
};

Verification verify(const Store& store);

/// Whether the source tree (source_root()) still has the source of a record's pipeline, whose hooks' texts the record
/// has. unknown: the pipeline's key does not describe the whole source, or there is no source tree.
enum class Freshness { current, unknown, changed };  // from the best to the worst
Freshness freshness(const Json& pipeline);

/// Returns the worst state of a measurement's kernels, and the key of the last kernel in this state; unknown and ""
/// without kernels.
std::pair<Freshness, std::string> age_of(const Json& measurement);

/// Whether the measurement is of today's kernels, or of no kernel. A measurement whose kernels cannot be compared with
/// today's, for example because it does not name the texts of its hooks, is not.
bool of_today(const Json& measurement);

}  // namespace attn::kb
