#include "common/attention/function_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
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
      const bool splice = raw.substr(i).starts_with("\\\n");
      if (splice) {
        ++i;
      } else {
        text += raw[i];
        lines.push_back(line);
      }
      line += splice || raw[i] == '\n';
    }
  }

  std::string text;
  std::vector<int> lines;
};

bool starts_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool among(std::initializer_list<std::string_view> names, std::string_view word) {
  return std::find(names.begin(), names.end(), word) != names.end();
}

/// Whether a pragma acts on the loop after it only.
bool is_for_loop(std::string_view pragma) {
  pragma.remove_prefix(std::min(pragma.find_first_not_of(" \t"), pragma.size()));
  return pragma.starts_with("unroll") || pragma.starts_with("clang loop");
}

/// Returns the text of the literal in `_Pragma("...")`, from the text after the word; an empty text if there is none.
std::string_view pragma_of(std::string_view text) {
  for (const char want : {'(', '"'}) {
    const size_t at = text.find_first_not_of(" \t\n");
    if (at == text.npos || text[at] != want) return {};
    text.remove_prefix(at + 1);
  }
  return text;
}

/// Directives, words and names of macros in a user's text. Comments and literals do not count.
struct Scanned {
  explicit Scanned(std::string_view raw);

  std::optional<std::pair<std::string, int>> forbidden;  // the first forbidden word or directive, and its line
  std::vector<MacroName> macros;                         // the names in #define and #undef
};

Scanned::Scanned(std::string_view raw) {
  const Spliced spliced(with_plain_lines(raw));
  const std::string_view text = spliced.text;
  const auto forbid = [&](std::string what, size_t at) {
    if (!forbidden) forbidden.emplace(std::move(what), spliced.lines[at]);
  };
  // line_begins: the next token is the first token of a line. directive: the next token follows a # at the start of a
  // line, so this token is the name of a directive. names_macro: the next token follows #define or #undef.
  bool line_begins = true, directive = false, names_macro = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const char c = text[i];
    if (c == '\n') {
      line_begins = true;
      directive = names_macro = false;
      continue;
    }
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (rest.starts_with("//")) {
      i = std::min(text.find('\n', i), text.size()) - 1;
      continue;
    }
    if (rest.starts_with("/*")) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
      continue;
    }
    if (line_begins && (c == '#' || rest.starts_with("%:"))) {
      i += c == '#' ? 0 : 1;
      line_begins = false;
      directive = true;
      continue;
    }
    const bool is_name_of_directive = std::exchange(directive, false), is_macro = std::exchange(names_macro, false);
    line_begins = false;
    if (starts_word(c)) {
      size_t end = i;
      while (end < text.size() && continues_word(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i), after = text.substr(end);
      if (is_macro && std::ranges::find(macros, word, &MacroName::name) == macros.end()) {
        macros.push_back({std::string(word), spliced.lines[i]});
      }
      if (is_name_of_directive) {
        names_macro = among({"define", "undef"}, word);
        if (among({"error", "warning"}, word)) {
          end = std::min(text.find('\n', end), text.size());
        } else if (word == "pragma"
                       ? !is_for_loop(after)
                       : !names_macro &&
                             !among({"if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif"}, word)) {
          forbid("#" + std::string(word), i);
        }
      } else if (among({"asm", "__asm", "__asm__", "extern", "__pragma"}, word) ||
                 (word == "_Pragma" && !is_for_loop(pragma_of(after)))) {
        forbid(std::string(word), i);
      } else if (among({"R", "LR", "uR", "UR", "u8R"}, word) && after.starts_with('"')) {
        forbid(std::string(word) + "\"", i);  // compilers read the lines of a raw literal by rules of their own
      }
      i = end - 1;
      continue;
    }
    if (is_name_of_directive) forbid("# " + std::string(rest.substr(0, 1)), i);
    if (rest.starts_with("##") || rest.starts_with("%:%:")) forbid("##", i);
    size_t end = i + 1;
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
    };
    if (is_digit(i) || (c == '.' && is_digit(end))) {  // a number, in which an apostrophe may separate digits
      while (end < text.size() && (continues_word(text[end]) || text[end] == '.' ||
                                   (text[end] == '\'' && end + 1 < text.size() && continues_word(text[end + 1])))) {
        ++end;
      }
      i = end - 1;
    }
    if (c != '"' && c != '\'') continue;
    while (end < text.size() && text[end] != c && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
    i = std::min(end, text.size() - 1);
    if (text[i] == '\n') --i;
  }
}

/// Returns the index of the first byte below 0x20 that is no white space, or of the first sequence that is not UTF-8.
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
  if (const auto found = Scanned(text).forbidden) {
    return fmt::format(
        "has {} in line {}, which is not allowed; the file must stand alone, without asm, extern, ## and raw literals, "
        "and may "
        "have the directives #define, #undef, #if and its kin, #error, #warning, #pragma unroll and #pragma clang loop",
        found->first, found->second);
  }
  return std::nullopt;
}

std::vector<MacroName> macros_of(std::string_view text) { return Scanned(text).macros; }

std::string with_plain_lines(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      const size_t end = std::min(text.find_first_not_of(" \t\v\f", i + 1), text.size());
      if (end < text.size() && (text[end] == '\n' || text[end] == '\r')) {
        plain += '\\';
        i = end - 1;
        continue;
      }
    }
    if (text[i] == '\r') {
      if (!text.substr(i + 1).starts_with('\n')) plain += '\n';
      continue;
    }
    plain += text[i];
  }
  return plain;
}

}  // namespace attn
