#include "common/base/text_table.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "common/base/number.h"

namespace attn {
namespace {

/// The place where the second column of a line begins, after two or more spaces; npos if there is none.
size_t second_column(const std::string& line) {
  constexpr size_t last = 40;  // more to the right, spaces separate no column
  const size_t gap = line.find("  ", std::min(line.find_first_not_of(' '), line.size()));
  const size_t column = gap == line.npos ? gap : line.find_first_not_of(' ', gap);
  return column > last ? line.npos : column;
}

/// The place below which the rest of a line stands.
size_t rest_of(const std::string& line) {
  const size_t column = second_column(line);
  return column != line.npos ? column : std::min(line.find_first_not_of(' '), line.size());
}

}  // namespace

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

std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string found, line;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(' ', at);
    if (begin == text.npos) break;
    const size_t end = std::min(text.find(' ', begin), text.size());
    // A line keeps the spaces before its words, because these spaces may align columns.
    const std::string gap =
        line.find_first_not_of(' ') == line.npos && !found.empty() ? "" : text.substr(at, begin - at);
    const std::string word = text.substr(begin, end - begin);
    if (line.find_first_not_of(' ') != line.npos && line.size() + gap.size() + word.size() > width) {
      found += line + "\n";
      line = std::string(indent, ' ') + word;
    } else {
      line += gap + word;
    }
    at = end;
  }
  return found + line + "\n";
}

std::string fitted(const std::string& text, size_t width) {
  std::istringstream lines(text);
  std::string found;
  for (std::string line; std::getline(lines, line);) found += wrapped(line, width, std::min(rest_of(line), width / 2));
  return found;
}

std::string unbroken(const std::string& text) {
  std::istringstream lines(text);
  std::string found;
  size_t rest = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin != line.npos && begin == rest && begin > 0 && second_column(line) == line.npos) {
      found.back() = ' ';
      found += line.substr(begin) + "\n";
      continue;
    }
    rest = rest_of(line);
    found += line + "\n";
  }
  return found;
}

std::string format_seconds(double seconds) {
  for (const auto& [unit, name] : {std::pair{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}}) {
    if (seconds >= 0.99995 * unit) {
      const double value = seconds / unit;
      return fmt::format("{:.{}f} {}", value, value < 9.9995 ? 3 : value < 99.995 ? 2 : 1, name);
    }
  }
  return fmt::format("{:.1f} ns", 1e9 * seconds);
}

std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 0.1 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

std::string format_ratio(double ratio) { return three_digits(ratio) + "x"; }

std::string printable(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  // C1 control characters, which some terminals obey: U+0080 to U+009F are the bytes C2 80 to C2 9F.
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      text[i] = text[i + 1] = ' ';
    }
  }
  return text;
}

std::string counted(size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

size_t output_width(size_t unknown) {
  winsize size{};
  const bool terminal = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  if (terminal && size.ws_col > 0) return size.ws_col;
  const char* const columns = std::getenv("COLUMNS");
  const size_t width = columns ? to_number<uint16_t>(columns).value_or(0) : 0;
  return width > 0 ? width : unknown;
}

}  // namespace attn
