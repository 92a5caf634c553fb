#include "common/base/text_table.h"

#include <algorithm>
#include <cstddef>

namespace attn {

std::string text_table(const std::vector<std::vector<std::string>>& rows, Align align) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      const std::string padding(last ? 0 : widths[i] - row[i].size(), ' ');
      line += align == Align::right ? padding + row[i] : row[i] + padding;
      if (!last) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace attn
