// The structs that stand in records as objects: one line for each struct names its members, in the order of the record.
// So writing and reading cannot differ. nlohmann's library finds to_json() and from_json(): a Json may be made of such
// a struct or of a vector of them, and Json::get() returns them. Reading throws Json::exception for a missing field or
// a wrong type, and BadInput for an unknown scope.
#pragma once

#include <string>

#include "common/base/json.h"
#include "common/data/compare.h"
#include "common/records/claim.h"

/// Defines to_json(), which writes the members after the fields that the object has, and from_json(). The names in the
/// functions are those that nlohmann's macros take.
#define ATTN_FIELDS(Type, ...)                                                 \
  inline void to_json(Json& nlohmann_json_j, const Type& nlohmann_json_t) {    \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))   \
  }                                                                            \
  inline void from_json(const Json& nlohmann_json_j, Type& nlohmann_json_t) {  \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__)) \
  }

namespace attn {

inline void to_json(Json& json, Scope scope) { json = name(scope); }
inline void from_json(const Json& json, Scope& scope) { scope = parse_scope(json.get<std::string>()); }

ATTN_FIELDS(Check, ok, max_abs, max_rel, rows_checked, worst)
ATTN_FIELDS(Timing, scope, n, rounds, median_s, ci_lo_s, ci_hi_s, cv, min_s, stop)
ATTN_FIELDS(Part, process, value, error, rounds)
ATTN_FIELDS(Spread, scale, freedom, between)
ATTN_FIELDS(Hypothesis, id, text, metric, op, threshold, origin)
/// The first fields of the object `estimate` of a finding, and the last fields: what else judge() takes.
ATTN_FIELDS(Pooled, value, ci_lo, ci_hi, next_lo, next_hi, tau, freedom, processes, sessions, machines)
ATTN_FIELDS(Conclusion, unit, floor, cv, unlike_throttling, warm, prior)

}  // namespace attn
