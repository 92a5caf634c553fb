// Rows of cells as a table of plain text.
#pragma once

#include <string>
#include <vector>

namespace attn {

enum class Align { left, right };

/// Returns a text with a line for each row. A column is as wide as its widest cell. The last cell of a row is not
/// padded, and stands at the left of its column.
std::string text_table(const std::vector<std::vector<std::string>>& rows, Align align);

}  // namespace attn
