#include "common/backends/metal/emulator/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <vector>

namespace attn::msl {

namespace {

struct Token {
  size_t begin, end;
  std::string_view text;
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the end of the comment, string literal or character literal that begins at `at`. Returns `at` if none of
// these begins there.
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

// Returns the tokens of a text: each word, each string or character literal, and each other character. Leaves out
// comments and spaces.
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

// Changes the attributes between "[[" and "]]". `at` is the first token after "[[". Returns the index of the first "]".
size_t change_attributes(const std::vector<Token>& tokens, std::string_view text, size_t at, bool of_parameter,
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
    if (name.text == "function_constant" && of_parameter) {
      // The parameter exists only if the named constant is true: [[buffer(1), function_constant(has)]]. The emulator
      // always passes the parameter, so it drops the attribute.
      changes.push_back({name.begin, end, ""});
      continue;
    }
    changes.push_back({name.begin, end, "clang::annotate(\"" + std::string(name.text) + "\"" + arguments + ")"});
  }
  return at;
}

// Whether the declaration after the word `threadgroup` declares a variable in threadgroup memory: an array, or a name
// before ";", "," or "=". A pointer or a reference to threadgroup memory does not count, because the pointer itself is
// not in threadgroup memory.
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

bool is_space(std::string_view word) { return word == "device" || word == "constant" || word == "threadgroup"; }

// Whether the ")" at `at` ends the parameters of a member function such as `f() const device {`, which has a body and
// is only for objects in device, constant or threadgroup memory.
bool is_member_of_space(const std::vector<Token>& tokens, size_t at) {
  const auto word = [&](size_t i) { return i < tokens.size() ? tokens[i].text : std::string_view(); };
  if (word(++at) == "const") ++at;
  if (!is_space(word(at))) return false;
  if (word(++at) == "noexcept") ++at;
  return word(at) == "{" || (word(at) == ":" && word(at + 1) != ":");
}

// Leaves out the member function whose parameters end at the token `at`. In C++, clang accepts only member functions
// for objects in the thread's own memory. Returns the index of the function's last token.
size_t leave_out_member(const std::vector<Token>& tokens, std::string_view text, size_t at,
                        std::vector<Change>& changes) {
  size_t first = at, last = at;
  for (; first > 0; --first) {
    const std::string_view before = tokens[first - 1].text;
    const bool after_access = before == ":" && first > 1 &&
                              (tokens[first - 2].text == "public" || tokens[first - 2].text == "private" ||
                               tokens[first - 2].text == "protected");
    if (before == ";" || before == "{" || before == "}" || after_access) break;
  }
  while (last + 1 < tokens.size() && tokens[last].text != "{") ++last;
  for (int depth = 1; depth > 0 && last + 1 < tokens.size();) {
    ++last;
    depth += (tokens[last].text == "{") - (tokens[last].text == "}");
  }
  size_t begin = tokens[first].begin;
  const std::string_view declared = text.substr(begin, tokens[at].begin - begin);
  const size_t directive = declared.starts_with('#') ? 0 : declared.rfind("\n#");  // begin of the last directive
  if (directive != std::string_view::npos) begin = text.find('\n', begin + directive + 1);
  while (!changes.empty() && changes.back().begin >= begin) changes.pop_back();
  const std::string_view whole = text.substr(begin, tokens[last].end - begin);
  changes.push_back({begin, tokens[last].end, std::string(std::ranges::count(whole, '\n'), '\n')});
  return last;
}

// Changes a parameter `constant int a[2]`, which clang refuses, to `constant int* a`. The token at `at` is the address
// space. Leaves a parameter that is no array as it is.
void change_array_parameter(const std::vector<Token>& tokens, size_t at, std::vector<Change>& changes) {
  size_t name = 0, words = 0;
  for (++at; at < tokens.size() && (is_word(tokens[at].text[0]) || tokens[at].text == ":"); ++at) {
    if (tokens[at].text == ":") continue;
    name = at;
    words += tokens[at].text != "const";
  }
  if (words < 2 || at >= tokens.size() || tokens[at].text != "[") return;
  const size_t first = at;
  while (at < tokens.size() && tokens[at].text != "]") ++at;
  if (at + 1 >= tokens.size() || (tokens[at + 1].text != "," && tokens[at + 1].text != ")")) return;
  changes.push_back({tokens[name].begin, tokens[name].begin, "* "});
  changes.push_back({tokens[first].begin, tokens[at].end, ""});
}

// Whether a word begins with a digit, so that it is a number and not a name.
bool is_number(std::string_view word) { return std::isdigit(static_cast<unsigned char>(word[0])) != 0; }

// In Metal a variable in the constant address space is a constant expression if its first value is one. In C++ an
// integer must be `const` for that, and an array, a struct or a float `constexpr`. The token at `at` is the word
// `constant`. If a declaration of variables with first values follows, puts `const` before it, or `constexpr` if the
// first values consist of numbers and of names in `known`, to which this function adds the declared names.
void change_constant(const std::vector<Token>& tokens, size_t at, std::set<std::string_view>& known,
                     std::vector<Change>& changes) {
  const auto word = [&](size_t i) { return i < tokens.size() ? tokens[i].text : std::string_view(); };
  for (size_t before = at; before > 0 && is_word(word(before - 1)[0]); --before) {
    const std::string_view other = word(before - 1);
    if (other == "const" || other == "constexpr" || other == "extern" || other == "typedef" || other == "using") return;
  }
  size_t name = at, words = 0, angles = 0, next = at + 1;
  for (; next < tokens.size(); ++next) {
    const std::string_view token = word(next);
    if (token == "const" || token == "constexpr") return;
    if (token == "<") ++angles;
    if (angles == 0 && is_word(token[0])) name = next, ++words;
    if (angles == 0 && !is_word(token[0]) && token != ":") break;
    if (token == ">") --angles;
  }
  if (words < 2) return;
  while (word(next) == "[") {
    while (next < tokens.size() && word(next) != "]") ++next;
    ++next;
  }
  if (word(next) != "=" && word(next) != "{") return;
  std::vector<std::string_view> declared = {word(name)};
  bool simple = true;
  int depth = 0;
  for (; next < tokens.size() && word(next) != ";"; ++next) {
    const std::string_view token = word(next);
    depth += (token == "{" || token == "(") - (token == "}" || token == ")");
    if (depth == 0 && token == "," && is_word(word(next + 1)[0])) {
      declared.push_back(word(++next));
      continue;
    }
    if (!is_word(token[0]) || is_number(token) || word(next - 1) == ".") continue;
    simple = simple && (known.contains(token) || token == "true" || token == "false" || token == "INFINITY");
  }
  if (simple) known.insert(declared.begin(), declared.end());
  changes.push_back({tokens[at].begin, tokens[at].begin, simple ? "constexpr " : "const "});
}

// Changes `coherent`, `coherent(device)` and `coherent(system)` to a macro of the library. Returns the index of the
// last token.
size_t change_coherent(const std::vector<Token>& tokens, size_t at, std::vector<Change>& changes) {
  const auto word = [&](size_t i) { return i < tokens.size() ? tokens[i].text : std::string_view(); };
  size_t last = at;
  if (word(at + 1) == "(" && (word(at + 2) == "device" || word(at + 2) == "system") && word(at + 3) == ")") {
    last = at + 3;
  } else if (word(at + 1) != "device" && (at == 0 || word(at - 1) != "device")) {
    return at;  // a name of the user's
  }
  changes.push_back({tokens[at].begin, tokens[last].end, "msl_coherent"});
  return last;
}

// Returns the index after the bracket at `at`, all that it encloses, and its counterpart.
size_t past_brackets(const std::vector<Token>& tokens, size_t at) {
  int depth = 0;
  do {
    const char c = tokens[at].text[0];
    depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
  } while (++at < tokens.size() && depth > 0);
  return at;
}

std::string_view word(const std::vector<Token>& tokens, size_t at) {
  return at < tokens.size() ? tokens[at].text : std::string_view(" ");
}

// Finds the parameters of a kernel that are pointers or references without an attribute. Adds their first tokens, and
// the attributes that they lack, to `bare`. The token at `at` is the word `kernel`.
void find_bare_parameters(const std::vector<Token>& tokens, size_t at, std::map<size_t, std::string>& bare) {
  int depth = 0;
  for (;; at = word(tokens, at) == "[" ? past_brackets(tokens, at) : at + 1) {
    const std::string_view token = word(tokens, at);
    if (token == " " || token == ";" || token == "{") return;
    depth += (token == "<") - (token == ">");
    if (depth == 0 && token == "(" && word(tokens, at - 1) != "decltype") break;
  }
  size_t first = at + 1;
  bool points = false, has_attribute = false, is_threadgroup = false;
  for (const size_t last = past_brackets(tokens, at) - 1; ++at <= last;) {
    const std::string_view token = tokens[at].text;
    if (token == "[" && word(tokens, at + 1) == "[") has_attribute = true;
    if (token == "threadgroup") is_threadgroup = true;
    if (depth == 0 && (token == "*" || token == "&")) points = true;
    if (at == last || (depth == 0 && token == ",")) {
      if (points && !has_attribute) {
        bare[first] = fmt::format("[[clang::annotate(\"{}\", -1)]] ", is_threadgroup ? "threadgroup" : "buffer");
      }
      first = at + 1;
      points = has_attribute = is_threadgroup = false;
    }
    constexpr std::string_view open = "<([{", close = ">)]}";
    depth += static_cast<int>(open.find(token[0]) != open.npos) - static_cast<int>(close.find(token[0]) != close.npos);
  }
}

// Whether a word is the name of one of Metal's vectors or small matrices, such as float4 or half4x4.
bool is_vector_name(std::string_view name) {
  static constexpr std::string_view scalars[] = {"bool", "char", "uchar", "short", "ushort", "int",
                                                 "uint", "long", "ulong", "half",  "bfloat", "float"};
  const size_t at = std::min(name.find_first_of("234"), name.size());
  const std::string_view size = name.substr(at);
  return std::ranges::find(scalars, name.substr(0, at)) != std::end(scalars) &&
         (size.size() == 1 || (size.size() == 3 && size[1] == 'x'));
}

// Returns the names of types in the text that may be vectors: the parameters of templates, and other names of types.
std::set<std::string_view> names_of_types(const std::vector<Token>& tokens) {
  std::set<std::string_view> names;
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    const std::string_view token = tokens[i].text, name = tokens[i + 1].text, next = tokens[i + 2].text;
    const bool of_template = next == "," || next == ">" || next == "=";
    if ((token == "typename" || token == "class") && is_word(name[0]) && of_template) names.insert(name);
    if (token == "using" && next == "=") names.insert(name);
    if (token != "typedef") continue;
    size_t end = i;
    while (end < tokens.size() && std::string_view(";{(").find(tokens[end].text) == std::string_view::npos) ++end;
    if (word(tokens, end) == ";") names.insert(tokens[end - 1].text);
  }
  return names;
}

// Returns the index after the type at `at`, if it may be a vector or a matrix; otherwise returns `at`.
size_t end_of_type(const std::vector<Token>& tokens, const std::set<std::string_view>& names, size_t at) {
  const std::string_view name = word(tokens, at);
  if (is_vector_name(name) || names.contains(name)) return at + 1;
  if ((name != "vec" && name != "matrix") || word(tokens, at + 1) != "<") return at;
  int depth = 0;
  do {
    ++at;
    depth += (word(tokens, at) == "<") - (word(tokens, at) == ">");
  } while (depth > 0 && at < tokens.size());
  return at + 1;
}

// Returns the index after the operand of a cast. The operand begins at `at`.
size_t end_of_operand(const std::vector<Token>& tokens, size_t at) {
  const auto past_word = [&](size_t i) {  // a number may go on after its exponent: 1e-3
    const std::string_view name = word(tokens, i), sign = word(tokens, i + 1);
    const bool exponent = is_number(name) && !name.starts_with("0x") && (name.back() == 'e' || name.back() == 'E');
    return i + (exponent && (sign == "-" || sign == "+") ? 3 : 1);
  };
  while (std::string_view("-+!~*&.").find(word(tokens, at)) != std::string_view::npos) ++at;
  if (word(tokens, at) == "(") {
    at = past_brackets(tokens, at);
    if (is_word(word(tokens, at)[0])) return end_of_operand(tokens, at);  // the parentheses are a cast
  } else {
    at = past_word(at);
    while (word(tokens, at) == ":" && word(tokens, at + 1) == ":") at += 3;
    if (word(tokens, at) == "<") {  // perhaps arguments of a template, as in as_type<half4>(x)
      size_t end = at + 1;
      while (is_word(word(tokens, end)[0]) || word(tokens, end) == "," || word(tokens, end) == ":") ++end;
      if (word(tokens, end) == ">" && word(tokens, end + 1) == "(") at = end + 1;
    }
  }
  for (;;) {
    const std::string_view token = word(tokens, at), next = word(tokens, at + 1);
    if (token == "(" || (token == "[" && next != "[")) {
      at = past_brackets(tokens, at);
    } else if (token == "." || (token == "-" && next == ">")) {
      at += token == "." ? 1 : 2;
      if (is_word(word(tokens, at)[0])) at = past_word(at);
    } else {
      return at;
    }
  }
}

// Changes a cast to a type that may be a vector, where clang would refuse the cast or keep the vector's bits. The cast
// begins at `at`: (half4)x, T(x) or static_cast<half4>(x). The call of a vector's name, half4(x), is a macro.
void change_cast(const std::vector<Token>& tokens, std::string_view text, const std::set<std::string_view>& names,
                 size_t at, std::vector<Change>& changes) {
  const std::string_view before = at > 0 ? tokens[at - 1].text : std::string_view(";");
  const bool after_name = is_word(before[0]) && before != "return" && before != "else" && before != "case";
  const auto of_type = [&](size_t first, size_t end) {
    return fmt::format("msl_cast<{}>", text.substr(tokens[first].begin, tokens[end - 1].end - tokens[first].begin));
  };
  if (tokens[at].text == "static_cast" && word(tokens, at + 1) == "<") {
    const size_t end = end_of_type(tokens, names, at + 2);
    if (end > at + 2 && word(tokens, end) == ">") changes.push_back({tokens[at].begin, tokens[at].end, "msl_cast"});
  } else if (tokens[at].text == "(") {
    const size_t end = end_of_type(tokens, names, at + 1);
    const std::string_view next = word(tokens, end + 1);
    const bool operand = is_word(next[0]) ? next != "const" && next != "noexcept" && next != "override"
                                          : std::string_view("(-+!~*&").find(next) != std::string_view::npos;
    if (end == at + 1 || word(tokens, end) != ")" || after_name || before == "]" || !operand) return;
    const size_t last = end_of_operand(tokens, end + 1) - 1;
    changes.push_back({tokens[at].begin, tokens[end].end, of_type(at + 1, end) + "("});
    changes.push_back({tokens[last].end, tokens[last].end, ")"});
  } else {
    const size_t end = end_of_type(tokens, names, at);
    if (end == at || word(tokens, end) != "(" || after_name || before == "." || before == "~") return;
    if (before == ":" && at > 1 && tokens[at - 2].text == ":" && names.contains(tokens[at].text)) return;
    if (is_vector_name(tokens[at].text) && tokens[at].text[tokens[at].text.size() - 2] != 'x') return;
    const std::string_view next = word(tokens, end + 1);
    const bool declares = (next == "*" || next == "&") && is_word(word(tokens, end + 2)[0]) &&
                          word(tokens, end + 3) == ")" &&
                          (word(tokens, end + 4) == "(" || word(tokens, end + 4) == "[");
    if (next != ")" && !declares) changes.push_back({tokens[at].begin, tokens[end - 1].end, of_type(at, end)});
  }
}

// Whether the token at `at` ends a literal of type half, such as 1.0h or 16.h.
bool is_half_literal(const std::vector<Token>& tokens, size_t at) {
  const Token& token = tokens[at];
  if (token.text.back() != 'h' || at == 0 || tokens[at - 1].text != "." || tokens[at - 1].end != token.begin) {
    return false;
  }
  const std::string_view digits = token.text.substr(0, token.text.size() - 1);
  if (digits.empty()) return at > 1 && is_number(tokens[at - 2].text) && tokens[at - 2].end == tokens[at - 1].begin;
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::string as_cxx(std::string_view text) {
  const std::vector<Token> tokens = tokens_of(text);
  std::vector<Change> changes;
  std::set<std::string_view> known;  // constants whose values the compiler can compute from this text alone
  const std::set<std::string_view> names = names_of_types(tokens);
  std::map<size_t, std::string> bare;  // attributes that parameters of kernels lack, by the parameter's first token
  int parentheses = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    parentheses += (tokens[i].text == "(") - (tokens[i].text == ")");
    if (const auto found = bare.find(i); found != bare.end()) {
      changes.push_back({tokens[i].begin, tokens[i].begin, found->second});
    }
    if (tokens[i].text == "kernel" ||
        (tokens[i].text == "[" && i + 2 < tokens.size() && tokens[i + 2].text == "kernel")) {
      find_bare_parameters(tokens, i + 1, bare);
    }
    change_cast(tokens, text, names, i, changes);
    if (tokens[i].text == "[" && tokens[i + 1].text == "[" && tokens[i + 1].begin == tokens[i].end) {
      if (i > 0 && tokens[i - 1].text == "template") {  // template [[host_name("k")]] [[kernel]] ...
        const size_t begin = tokens[i].begin;
        for (int depth = 0; i < tokens.size(); ++i) {
          depth += (tokens[i].text == "[") - (tokens[i].text == "]");
          if (depth == 0 && (i + 1 >= tokens.size() || tokens[i + 1].text != "[")) break;
        }
        changes.push_back({begin, i < tokens.size() ? tokens[i].end : text.size(), ""});
        continue;
      }
      i = change_attributes(tokens, text, i + 2, parentheses > 0, changes);
    } else if (parentheses > 0 && is_space(tokens[i].text)) {
      change_array_parameter(tokens, i, changes);
    } else if (tokens[i].text == "constant") {
      change_constant(tokens, i, known, changes);
    } else if (tokens[i].text == "coherent") {
      i = change_coherent(tokens, i, changes);
    } else if (tokens[i].text == "volatile") {
      changes.push_back({tokens[i].begin, tokens[i].end, ""});
    } else if (tokens[i].text == "long" && tokens[i + 1].text == "long") {
      changes.push_back({tokens[i].begin, tokens[i + 1].end, "msl_long_long"});
      ++i;
    } else if (tokens[i].text == "threadgroup" && declares_variable(tokens, i + 1)) {
      const bool after_static = i > 0 && (tokens[i - 1].text == "static" || tokens[i - 1].text == "extern");
      if (!after_static) changes.push_back({tokens[i].begin, tokens[i].begin, "static "});
    } else if (tokens[i].text == ")" && is_member_of_space(tokens, i)) {
      i = leave_out_member(tokens, text, i, changes);
    } else if (is_half_literal(tokens, i)) {
      changes.push_back({tokens[i].end - 1, tokens[i].end, "f16"});
    }
  }
  std::ranges::stable_sort(changes, {}, &Change::begin);
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
