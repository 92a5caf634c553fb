// Records for other programs and for readers.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Findings and notes by experiment and topic, as Markdown; measurements are left out.
std::string to_markdown(const std::vector<Record>& records);

/// One line per record under a head line, RFC 4180.
std::string to_csv(const std::vector<Record>& records);

/// One line per finding or note for a POSIX shell, for the knowledge base of the study this project follows:
/// kb add SKILL TOPIC CLAIM EVIDENCE URL TITLE TYPE CONFIDENCE TAGS
/// SKILL must be one it has. CONFIDENCE is one of its words (verified, high, medium, low, unverified), TYPE one of its
/// types (benchmark for findings). Control characters become blanks, so that a line is a command.
std::string to_gpu_forge(const std::vector<Record>& records, const std::string& skill);

/// A citation in one paragraph: what, how sure, where, when, and how to measure it again.
std::string citation(const Record& record);

/// The words for confidence that the study's knowledge base has, and numbers from 0 to 1. Throws BadInput.
double parse_confidence(const std::string& text);

/// Text for a terminal or a line-based file: control characters become blanks.
std::string printable(std::string text);

}  // namespace attn::kb
