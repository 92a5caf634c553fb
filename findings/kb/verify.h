// Do the records still say what their figures say, do they agree with each other, and are they of today's kernels?
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/source/kernel_source.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// What is wrong with one record taken alone: schema, units, id, intervals; of a measurement also its rates; of a
/// finding also prose (rendered again), verdict, confidence and claim_key (computed again).
std::vector<std::string> verify_record(const Record& record);

struct Problem {
  std::string id, text;
};

/// Findings of one claim, at least one supported and one refuted.
struct Contradiction {
  std::string claim_key;
  std::vector<Record> findings;
};

struct Verification {
  int64_t records = 0;
  std::vector<Problem> problems;
  std::vector<Contradiction> contradictions;
  std::vector<Problem> stale;  // findings whose kernels have other source code today
  int64_t fresh = 0;           // findings of today's kernels
  int64_t unknown = 0;         // findings whose kernels cannot be told: no measurement here, or no source tree
};

Verification verify(const Store& store);

/// Hashes of recorded kernel sources, each with that of today's source which gives the same machine code; read from
/// findings/same_code.txt of the source tree.
using SameCode = std::map<std::string, std::string>;
SameCode same_code();

/// Kernel sources of the tree (source_root()) with their text.
std::vector<SourceFile> kernel_texts();

/// Names the files of a source and its fragments, which a record's key does not tell: those with which the source has
/// this hash. False where there are none.
bool name_files(KernelSource& source, const std::string& sha256, const std::vector<SourceFile>& kernels);

/// What a measurement says of each kernel that it launched.
std::vector<Json> kernels_of(const Json& measurement);

/// Whether the source tree (source_root()) has the source that a pipeline of a record was made of, or one of the same
/// machine code.
enum class Freshness { current, changed, unknown };
Freshness freshness(const Json& pipeline, const SameCode& same = {});

}  // namespace attn::kb
