// Exports records for other programs and for readers.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns findings as Markdown, with a section for each experiment and hypothesis.
std::string to_markdown(const std::vector<Record>& records);

/// Returns CSV (RFC 4180) with a head row.
std::string to_csv(const std::vector<Record>& records);

/// Returns POSIX shell commands, one line per finding, that add the findings to the knowledge base of the study that
/// this project follows:
///   kb add SKILL TOPIC CLAIM EVIDENCE URL TITLE TYPE CONFIDENCE TAGS
/// SKILL must exist in that knowledge base. TYPE is `benchmark`. CONFIDENCE is verified, high, medium, low or
/// unverified. EVIDENCE cites the finding with the command that measures it again. Control characters become blanks.
std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill);

/// The probability that a finding's verdict is wrong for readers, "exact" for a finding about an exact figure. Empty
/// for other records.
std::string wrong_text(const Record& record);

}  // namespace attn::kb
