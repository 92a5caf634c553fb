// Checks whether a record is as docs/records.md describes it: fields, types, ranges, units. The checks are written by
// hand; a test compares them with findings/record.schema.json.
#pragma once

#include <string>
#include <vector>

#include "common/records/finding.h"

namespace attn::kb {

/// Each deviation from the schema as "path: what is wrong"; empty where the record is sound. Never throws.
std::vector<std::string> check_schema(const Json& record);

/// Figures whose name says that they are a quantity, but not in which unit; each as "path: ...".
std::vector<std::string> check_units(const Json& record);

}  // namespace attn::kb
