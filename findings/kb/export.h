// Exports records for other programs and for readers.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns findings and notes as Markdown, by experiment and topic. Leaves out measurements and runs.
std::string to_markdown(const std::vector<Record>& records);

/// Returns CSV (RFC 4180): a head line, and one line per record.
std::string to_csv(const std::vector<Record>& records);

/// Returns commands of a POSIX shell, one line per finding or note, for the knowledge base of the study that this
/// project follows:
/// kb add SKILL TOPIC CLAIM EVIDENCE URL TITLE TYPE CONFIDENCE TAGS
/// That knowledge base must have SKILL already. The knowledge base also decides which words CONFIDENCE may be
/// (verified, high, medium, low, unverified) and which types TYPE may be (benchmark for findings). Control characters
/// become blanks, so that each command is one line.
std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill);

/// Returns a citation in one paragraph: the result, its confidence, device, time and commit, and the command that
/// measures the result again.
std::string citation(const Record& record);

/// Parses a confidence: a number from 0 to 1, or a word of the study's knowledge base ("high"). Throws BadInput.
double parse_confidence(const std::string& text);

}  // namespace attn::kb
