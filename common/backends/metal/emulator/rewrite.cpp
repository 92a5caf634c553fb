#include "common/backends/metal/emulator/rewrite.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace attn::msl {

namespace {

struct Token {
  size_t begin, end;
  std::string_view text;
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the end of the comment, string or character that begins at `at`, or `at` if none begins there.
size_t end_of_quoted(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  const auto past = [&](std::string_view end, size_t from) {
    const size_t found = text.find(end, from);
    return found == std::string_view::npos ? text.size() : found + end.size();
  };
  if (rest.starts_with("//")) return past("\n", at) - (past("\n", at) < text.size());
  if (rest.starts_with("/*")) return past("*/", at + 2);
  const bool digit_separator = rest.starts_with('\'') && at > 0 && is_word(text[at - 1]);
  if ((rest.starts_with('"') || rest.starts_with('\'')) && !digit_separator) {
    size_t end = at + 1;
    while (end < text.size() && text[end] != rest[0] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
    return std::min(end + 1, text.size());
  }
  return at;
}

// Returns the words of a text, and its other characters one by one, without comments and spaces.
std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t end = end_of_quoted(text, at);
    const bool quoted = end > at, comment = quoted && text[at] == '/';
    if (!quoted) {
      end = at + 1;
      while (is_word(text[at]) && end < text.size() && is_word(text[end])) ++end;
    }
    if (!comment && !std::isspace(static_cast<unsigned char>(text[at]))) {
      tokens.push_back({at, end, text.substr(at, end - at)});
    }
    at = end;
  }
  return tokens;
}

struct Change {
  size_t begin, end;
  std::string text;
};

bool is_cxx_attribute(std::string_view name) {
  static constexpr std::string_view known[] = {"maybe_unused", "nodiscard",  "likely",   "unlikely",
                                               "fallthrough",  "deprecated", "noreturn", "no_unique_address",
                                               "clang",        "gnu",        "assume"};
  return std::ranges::find(known, name) != std::end(known);
}

// Changes the attributes between "[[" and "]]"; `at` is the first token after "[[". Returns the index of the first "]".
size_t change_attributes(const std::vector<Token>& tokens, std::string_view text, size_t at,
                         std::vector<Change>& changes) {
  while (at < tokens.size() && tokens[at].text != "]") {
    const Token& name = tokens[at++];
    if (!is_word(name.text[0])) continue;  // a comma
    size_t end = name.end;
    std::string arguments;
    const bool qualified = at + 1 < tokens.size() && tokens[at].text == ":" && tokens[at + 1].text == ":";
    if (qualified) at += 3;
    if (at < tokens.size() && tokens[at].text == "(") {
      int depth = 0;
      const size_t first = tokens[at].end;
      do {
        depth += (tokens[at].text == "(") - (tokens[at].text == ")");
        end = tokens[at].end;
      } while (++at < tokens.size() && depth > 0);
      arguments = ", " + std::string(text.substr(first, end - 1 - first));
    }
    if (qualified || is_cxx_attribute(name.text)) continue;
    if (name.text == "function_constant" && arguments.find_first_of("0123456789") != 2) {
      // This attribute names the constant under which a parameter exists: [[buffer(1), function_constant(has)]].
      changes.push_back({name.begin, end, ""});
      continue;
    }
    changes.push_back({name.begin, end, "clang::annotate(\"" + std::string(name.text) + "\"" + arguments + ")"});
  }
  return at;
}

// Whether the declaration after `threadgroup` is of a variable that lies in threadgroup memory: an array, or a name
// that is followed by ; , or =. A pointer or a reference lies elsewhere.
bool declares_variable(const std::vector<Token>& tokens, size_t at) {
  int angles = 0;
  for (size_t words = 0; at < tokens.size(); ++at) {
    const std::string_view token = tokens[at].text;
    if (token == "<") ++angles;
    if (token == ">") --angles;
    if (angles < 0) return false;  // an argument of a template
    if (angles > 0) continue;
    if (is_word(token[0])) ++words;
    if (token == "[" || token == ";" || token == "," || token == "=") return words >= 2;
    if (token == "*" || token == "&" || token == "(" || token == ")" || token == "{") return false;
  }
  return false;
}

}  // namespace

std::string as_cxx(std::string_view text) {
  const std::vector<Token> tokens = tokens_of(text);
  std::vector<Change> changes;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i].text == "[" && tokens[i + 1].text == "[" && tokens[i + 1].begin == tokens[i].end) {
      i = change_attributes(tokens, text, i + 2, changes);
    } else if (tokens[i].text == "threadgroup" && declares_variable(tokens, i + 1)) {
      const bool after_static = i > 0 && (tokens[i - 1].text == "static" || tokens[i - 1].text == "extern");
      if (!after_static) changes.push_back({tokens[i].begin, tokens[i].begin, "static "});
    }
  }
  std::string result;
  size_t copied = 0;
  for (const Change& change : changes) {
    result += text.substr(copied, change.begin - copied);
    result += change.text;
    copied = change.end;
  }
  result += text.substr(copied);
  return result;
}

}  // namespace attn::msl
