// Exports records for other programs and for readers.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns findings and notes as Markdown, with a section for each experiment (for notes: domain) and topic.
std::string to_markdown(const std::vector<Record>& records);

/// Returns CSV (RFC 4180) with a head row.
std::string to_csv(const std::vector<Record>& records);

/// Returns POSIX shell commands, one line per finding or note, that add the records to the knowledge base of the study
/// that this project follows:
///   kb add SKILL TOPIC CLAIM EVIDENCE URL TITLE TYPE CONFIDENCE TAGS
/// SKILL must exist in that knowledge base. TYPE is one of its types of sources, `benchmark` for findings. CONFIDENCE
/// is verified, high, medium, low or unverified. Control characters become blanks.
std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill);

/// Returns one line that cites a record. The citation of a finding has the command that measures the result again.
std::string citation(const Record& record);

/// The confidence of a finding or a note for readers, "exact" for a finding about an exact figure. Empty for records
/// of other kinds.
std::string confidence_text(const Record& record);

/// Parses a number from 0 to 1, or a word of to_gpu_forge(), which stands for the least confidence with this word.
/// Throws BadInput.
double parse_confidence(const std::string& text);

}  // namespace attn::kb
