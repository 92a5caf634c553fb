// Whether a record is what docs/records.md says: fields, types and ranges as in findings/record.schema.json, and units.
#pragma once

#include <string>
#include <vector>

#include "common/records/finding.h"

namespace attn::kb {

/// Each deviation from the schema as "path: what is wrong"; empty where the record is sound. Never throws.
std::vector<std::string> check_schema(const Json& record);

/// The figures whose name says that the figure is a quantity but does not say the unit, each as "path: ...".
std::vector<std::string> check_units(const Json& record);

}  // namespace attn::kb
