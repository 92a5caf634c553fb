// The advice that follows from pooled claims, device by device.
#pragma once

#include <string>
#include <vector>

#include "common/base/json.h"

namespace attn::kb {

/// Returns one object for each device of the pooled claims (pooled_claims.h), in order of name:
///   device
///   decided, measurements, wrong     the number of decided verdicts about figures with an error, the number of
///                                    measurements that they judge, and how many of them are expected to be wrong
///   advised, undecided               the lines of add_lines() (common/records/advice.h), in order of the topics, each
///                                    also with "experiment", "topic", "op", "threshold" and "ids" (the latest finding
///                                    of each case)
/// `registered` has the claims of findings/claims.jsonl. A claim there has these words, also if its findings have other
/// words; it has no line if it has no words there. Of several definitions of a claim about one subject, the latest
/// counts.
std::vector<Json> advice_by_device(const std::vector<Json>& pooled, const std::vector<Json>& registered);

/// Returns the lines "advised" of advice_by_device() for a reader, under their devices and topics.
std::string advice_page(const std::vector<Json>& devices);

/// Reads a file of JSON lines with this schema, or stdin for "-". Throws BadInput for a file that cannot be read, and
/// for a line that is no JSON object. Where `schema` is not empty, a line of another schema is refused too.
std::vector<Json> read_lines(const std::string& name, const std::string& schema);

}  // namespace attn::kb
