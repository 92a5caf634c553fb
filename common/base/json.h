// JSON, with the fields of an object in the order in which they were written.
#pragma once

#include <string_view>

// In nlohmann/json.hpp, the body of the function `operator "" _json` calls a parser. Each file with this header would
// compile that parser, which takes more than half a second. The macro makes the body part of a template that nobody
// uses, and leaves the function without a body.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
#define _json(text, size) \
  _json(text, size);      \
  template <typename>     \
  json unused_literal(text, size)
#include <nlohmann/json.hpp>
#undef _json

namespace attn {

using Json = nlohmann::ordered_json;

/// Calls Json::parse(). A file that calls Json::parse() itself compiles a parser of its own, which takes two seconds.
/// If the text is no JSON, parse_json(text, true) throws Json::parse_error, and parse_json(text, false) returns a value
/// whose is_discarded() is true.
Json parse_json(std::string_view text, bool throws = true);

}  // namespace attn
