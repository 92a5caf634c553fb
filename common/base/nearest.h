// The word that a user probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn {

/// Returns the word of `known` that needs the fewest letters inserted, removed, replaced, or swapped with the next
/// letter, to become `word`; the first of several such words. Returns "" if even this word needs more than a third of
/// the letters of `word` changed.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

/// Returns " (did you mean WORD?)" for the nearest() word, or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace attn
