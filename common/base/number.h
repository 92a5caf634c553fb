// Numbers in texts, above all in command lines.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/error.h"

namespace attn {

/// std::from_chars, of the whole text. LLVM's standard library before version 20, which Macs have, lacks it for
/// floating-point numbers.
template <typename Number>
bool from_whole_text(std::string_view text, Number& value) {
#ifndef __cpp_lib_to_chars
  if constexpr (std::is_floating_point_v<Number>) {
    if (text.starts_with('+') || text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());
    return stream >> value && stream.peek() == std::istringstream::traits_type::eof();
  } else
#endif
  {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  }
}

/// Returns the value of a text that is a decimal number. Returns nothing if the text has anything else (a unit, a
/// blank, a '+', hex digits, nan, inf) or if the type cannot hold the value.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number value{};
  if (!from_whole_text(text, value)) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

/// Returns the value of an option. Throws BadInput if the option's text is no number from `min` to `max`.
template <typename Number>
Number parse_number(std::string_view option, std::string_view text, Number min, Number max) {
  const std::optional<Number> value = to_number<Number>(text);
  if (value && *value >= min && *value <= max) return *value;
  throw BadInput(fmt::format("{} {}: not allowed; {} from {} to {}", option, text,
                             std::integral<Number> ? "an integer" : "a number", min, max));
}

}  // namespace attn
