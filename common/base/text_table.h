// Plain text for people: tables, paragraphs, times and ratios.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace attn {

enum class Align { left, right };

/// Returns a text with a line for each row. A column is as wide as its widest cell. The last cell of a row is not
/// padded, and stands at the left of its column.
std::string text_table(const std::vector<std::vector<std::string>>& rows, Align align);

/// Returns a paragraph in lines of at most `width` characters, broken at spaces; lines after the first begin with
/// `indent` spaces. A word that does not fit into `width` stands alone on its line.
std::string wrapped(const std::string& text, size_t width, size_t indent);

/// Returns a text whose lines have at most `width` characters. The rest of a line that is longer stands below the
/// line's second column, which begins after two or more spaces; below its first word if there is no such column.
std::string fitted(const std::string& text, size_t width);

/// Returns a text for fitted(): each line that continues a paragraph is joined to the line before. Such a line begins
/// where fitted() would put the rest of the line before, and has no second column.
std::string unbroken(const std::string& text);

/// Returns a time in the unit that fits: "1.234 s", "12.34 ms", "123.4 us", "56.7 ns".
std::string format_seconds(double seconds);
/// Returns a number with about three digits: "0.052", "0.52", "1.07", "12.3", "123".
std::string three_digits(double value);
/// Returns a ratio with three_digits(): "0.052x", "0.52x", "1.07x", "12.3x", "123x".
std::string format_ratio(double ratio);

/// Returns the text for a terminal or a line-based file: control characters become blanks.
std::string printable(std::string text);

/// Returns "1 case", "2 cases".
std::string counted(size_t count, const std::string& noun);

/// Returns how many characters a line of stdout has: the width of the terminal. If stdout is no terminal, the width is
/// the number in the environment variable COLUMNS, or `unknown`.
size_t output_width(size_t unknown = 100);

}  // namespace attn
