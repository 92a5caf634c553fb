// Checks a record against docs/records.md: fields, types and ranges by findings/record.schema.json, and units.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/records/finding.h"

namespace attn::kb {

/// Returns each deviation from the schema as "path: what is wrong"; nothing for a sound record. Never throws.
std::vector<std::string> check_schema(const Json& record);

/// Returns whether `device`, a device's name in a record, names an emulated device. Records of emulated devices are
/// never mixed with records of measured devices.
bool is_emulated(std::string_view device);

/// Returns each figure whose name has the word of a quantity (time, memory, ...) but no unit, as "path: ...".
std::vector<std::string> check_units(const Json& record);

}  // namespace attn::kb
