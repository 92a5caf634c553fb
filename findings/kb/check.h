// Checks a record: fields, types and ranges by findings/record.schema.json, and the units in the names of figures.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/records/finding.h"

namespace attn::kb {

/// The text of findings/record.schema.json.
extern const char* const record_schema;

/// Returns each deviation of a value from a schema (JSON Schema, draft 2020-12) as "path: what is wrong, what is
/// allowed"; nothing for a sound value. Knows only the keywords that findings/record.schema.json uses, and ignores
/// others. For a `pattern`, the `description` in the same schema says what is allowed. A message from a `then` or an
/// `else` ends with the `description` of that branch, which says when the rule holds. Throws Json::exception for a
/// reference that leads nowhere.
std::vector<std::string> deviations(const Json& schema, const Json& value);

/// Returns each deviation from the record's schema as "path: what is wrong"; nothing for a sound record. If the record
/// follows the schema, also checks two rules that the schema does not have: the numbers of axes are written without a
/// fraction, and an emulated device has no findings and no times, rates or clocks. Never throws.
std::vector<std::string> check_schema(const Json& record);

/// Returns the first of at least one problem, with the number of the others.
std::string first_of(const std::vector<std::string>& problems);

/// Returns whether `device`, a device's name in a record, names an emulated device: a device that runs another device's
/// kernels on the host to check results, and has no times of its own (metal:emulated). kb compares the cases of an
/// emulated device only with cases of a device with the same name.
bool is_emulated(std::string_view device);

/// Returns "path: ..." for each number whose name contains a quantity (time, memory, ...) and ends neither with a unit
/// nor with a word for a figure without a unit (ratio, ...). Skips the values of axes and the counts of instructions.
std::vector<std::string> check_units(const Json& record);

}  // namespace attn::kb
