// Exports records for other programs and for readers.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns findings and notes as Markdown. A section has the findings of one experiment and topic, or the notes of one
/// domain and topic. Leaves out measurements and runs.
std::string to_markdown(const std::vector<Record>& records);

/// Returns CSV (RFC 4180): a head row, and one row per record.
std::string to_csv(const std::vector<Record>& records);

/// Returns shell commands (POSIX), one line per finding or note, that add the records to the knowledge base of the
/// study that this project follows:
///   kb add SKILL TOPIC CLAIM EVIDENCE URL TITLE TYPE CONFIDENCE TAGS
/// SKILL must exist in that knowledge base. TYPE is one of that knowledge base's types of sources; it is `benchmark`
/// for findings. CONFIDENCE is verified, high, medium, low or unverified. Control characters become blanks, so that
/// each command is one line.
std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill);

/// Returns a citation of a record in one line. The citation of a finding has the result, its confidence, device, time
/// and commit, and the command that measures the result again.
std::string citation(const Record& record);

/// Parses a confidence: a number from 0 to 1, or a word of to_gpu_forge(). A word stands for the least confidence to
/// which to_gpu_forge() gives this word. Throws BadInput.
double parse_confidence(const std::string& text);

}  // namespace attn::kb
