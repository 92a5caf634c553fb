#include "common/source/tokens.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace attn {
namespace {

// The longest first: the compiler reads as many characters as form a token.
constexpr std::array<std::string_view, 27> operators = {"<<=", ">>=", "<=>", "->*", "...", "::", "->", ".*", "++",
                                                        "--",  "+=",  "-=",  "*=",  "/=",  "%=", "^=", "&=", "|=",
                                                        "==",  "!=",  "<=",  ">=",  "&&",  "||", "<<", ">>", "##"};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// The length of the number that begins at the text's first character. An exponent may have a sign, and apostrophes may
/// separate digits.
size_t number_length(std::string_view text) {
  size_t end = 1;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    const bool sign = (c == '+' || c == '-') && std::string_view("eEpP").find(text[end - 1]) != std::string_view::npos;
    const bool separator = c == '\'' && end + 1 < text.size() && of_word(text[end + 1]);
    if (!of_word(c) && c != '.' && !sign && !separator) break;
  }
  return end;
}

/// The length of the literal that begins with the quote at text[0]. A literal ends at the end of its line at the
/// latest.
size_t literal_length(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[0] || text[i] == '\n') {
      return i + (text[i] == text[0]);
    }
  }
  return text.size();
}

/// The length of R"DELIMITER(...)DELIMITER", without its R.
size_t raw_length(std::string_view text) {
  const size_t open = text.find('(');
  if (open == text.npos) return text.size();
  const std::string close = ")" + std::string(text.substr(1, open - 1)) + "\"";
  const size_t end = text.find(close, open);
  return end == text.npos ? text.size() : end + close.size();
}

size_t token_length(std::string_view text) {
  const auto digit = [&](size_t i) { return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])); };
  if (digit(0) || (text[0] == '.' && digit(1))) return number_length(text);
  if (of_word(text[0])) {
    const size_t end = std::ranges::find_if_not(text, of_word) - text.begin();
    if (end == text.size()) return end;
    if (text[end] == '"' && text[end - 1] == 'R') return end + raw_length(text.substr(end));
    const std::string_view word = text.substr(0, end);
    const bool prefix = word == "L" || word == "u" || word == "U" || word == "u8";
    return prefix && (text[end] == '"' || text[end] == '\'') ? end + literal_length(text.substr(end)) : end;
  }
  if (text[0] == '"' || text[0] == '\'') return literal_length(text);
  for (const std::string_view known : operators) {
    if (text.starts_with(known)) return known.size();
  }
  return 1;
}

}  // namespace

std::string tokens_of(std::string_view text) {
  std::string tokens;
  bool line_begins = true, directive = false;
  std::string_view before;  // the token before, in a directive
  while (!text.empty()) {
    const char c = text[0];
    if (is_blank(c)) {
      text.remove_prefix(1);
      if (c != '\n') continue;
      if (directive) tokens += '\n';
      directive = false;
      line_begins = true;
      continue;
    }
    if (line_begins && c == '#') {
      if (!tokens.empty() && tokens.back() != '\n') tokens += '\n';
      directive = true;
      before = {};
    }
    line_begins = false;
    const size_t length = token_length(text);
    // A macro has parameters only if the parenthesis follows its name without a blank.
    const bool name_of_macro = directive && before == "define" && length < text.size() && text[length] == '(';
    tokens.append(text, 0, length) += name_of_macro ? "" : " ";
    before = text.substr(0, length);
    text.remove_prefix(length);
  }
  return tokens;
}

}  // namespace attn
