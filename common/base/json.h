// JSON, with the fields of an object in the order in which they were written.
#pragma once

#include <string>
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

/// parse_json(text, false) for a text that another program may have written. Also discards a value that is nested more
/// than `most_depth` deep: copying a deeply nested value would use up the stack.
Json parse_shallow_json(std::string_view text, int most_depth);

/// Returns the value at a JSON pointer such as "/data/run"; null if there is none.
Json value_at(const Json& json, const char* pointer);
/// Returns the text at a JSON pointer; an empty text if there is none.
std::string text_at(const Json& json, const char* pointer);

}  // namespace attn
