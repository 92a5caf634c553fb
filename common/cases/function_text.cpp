#include "common/cases/function_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

namespace attn {
namespace {

/// A text as a compiler sees it after translation phase 2, which joins a line that ends in a backslash with the next
/// line. `lines` has, for each character of the joined text, the number of the character's line in the raw text.
struct Spliced {
  explicit Spliced(std::string_view raw) {
    int line = 1;
    for (size_t i = 0; i < raw.size(); ++i) {
      const size_t end = raw.substr(i).starts_with("\\\r\n") ? 3 : raw.substr(i).starts_with("\\\n") ? 2 : 0;
      if (end > 0) {
        i += end - 1;
      } else {
        text += raw[i];
        lines.push_back(line);
      }
      line += end > 0 || raw[i] == '\n';
    }
  }

  std::string text;
  std::vector<int> lines;
};

bool starts_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Searches the text of a user's function for forbidden words and directives. Returns the first of them with its line
/// number, or nothing if the text has none. All words are allowed in comments and literals.
std::optional<std::pair<std::string, int>> find_forbidden(std::string_view raw) {
  constexpr std::array words = {"asm", "__asm", "__asm__", "extern"};
  constexpr std::array includes = {"include", "include_next", "import", "embed"};
  const auto among = [](const auto& names, std::string_view word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  };
  const Spliced spliced(raw);
  const std::string_view text = spliced.text;
  // line_begins: the next token is the first token of a line. directive: the next token follows a
  // # at the start of a line, so this token is the name of a directive.
  bool line_begins = true, directive = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const char c = text[i];
    if (c == '\n') {
      line_begins = true;
      directive = false;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      continue;
    } else if (rest.starts_with("//")) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (rest.starts_with("/*")) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
    } else if (line_begins && (c == '#' || rest.starts_with("%:"))) {
      i += c == '#' ? 0 : 1;
      line_begins = false;
      directive = true;
    } else if (starts_word(c)) {
      size_t end = i;
      while (end < text.size() && continues_word(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      if (directive && among(includes, word)) return std::pair("#" + std::string(word), spliced.lines[i]);
      if (among(words, word)) return std::pair(std::string(word), spliced.lines[i]);
      line_begins = directive = false;
      const bool raw_literal = word.ends_with('R') && end < text.size() && text[end] == '"';
      const size_t open = raw_literal ? text.find('(', end) : text.npos;
      if (open != text.npos) {
        const std::string close = ")" + std::string(text.substr(end + 1, open - end - 1)) + "\"";
        end = std::min(text.find(close, open), text.size() - close.size()) + close.size();
      }
      i = end - 1;
    } else {
      line_begins = directive = false;
      const bool separates = c == '\'' && i > 0 && continues_word(text[i - 1]);  // between digits of a number
      if (c != '"' && (c != '\'' || separates)) continue;
      size_t end = i + 1;
      while (end < text.size() && text[end] != c && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      i = std::min(end, text.size() - 1);
      if (text[i] == '\n') --i;
    }
  }
  return std::nullopt;
}

/// Returns the index of the first control character other than white space, or of the first sequence that is not UTF-8.
/// Returns npos if the text has neither.
size_t find_binary(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned lead = byte(i);
    const size_t size = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
    if (size == 0 || (lead < 0x20 && !std::isspace(static_cast<int>(lead)))) return i;
    for (size_t at = i + 1; at < i + size; ++at) {
      if ((byte(at) & 0xC0) != 0x80) return i;
    }
    // A character in more bytes than it needs, half of a UTF-16 pair, or a number above U+10FFFF.
    const unsigned second = byte(i + 1);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second >= 0x90)) {
      return i;
    }
    i += size;
  }
  return text.npos;
}

int line_of(std::string_view text, size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

}  // namespace

std::optional<std::string> refused_text(std::string_view text) {
  if (const size_t at = find_binary(text); at != text.npos) {
    return fmt::format("is no text file: line {} has the byte 0x{:02x}", line_of(text, at),
                       static_cast<unsigned char>(text[at]));
  }
  if (const auto found = find_forbidden(text)) {
    return fmt::format(
        "has {} in line {}, which is not allowed; the file must stand alone, without #include, #include_next, #import, "
        "#embed, extern and asm",
        found->first, found->second);
  }
  return std::nullopt;
}

}  // namespace attn
