#include "common/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace attn {
namespace {

/// The number of letters to insert, remove, replace or swap with the next letter (optimal string alignment).
size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      least[i][j] = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t most_letters = 64;  // a longer word is no misspelt one
  if (word.size() > most_letters) return "";
  std::pair<size_t, std::string> best = {word.size() / 3 + 1, ""};
  for (const std::string& other : known) {
    const size_t distance = edits(word, other);
    if (distance < best.first) best = {distance, other};
  }
  return best.second;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string meant = nearest(word, known);
  return meant.empty() ? "" : " (did you mean " + meant + "?)";
}

}  // namespace attn
