#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "findings/kb/check.h"

namespace attn::kb {
namespace {

/// The types of JSON Schema, as messages call them.
const std::map<std::string, std::string> type_names = {
    {"array", "a list"},    {"boolean", "true or false"}, {"integer", "an integer"}, {"null", "null"},
    {"number", "a number"}, {"object", "an object"},      {"string", "a text"}};

/// `types`: the name of a type, or a list of names.
bool has_type(const Json& value, const Json& types) {
  if (types.is_array()) return std::ranges::any_of(types, [&](const Json& type) { return has_type(value, type); });
  if (types == "integer" && value.is_number_float())
    return value == std::trunc(value.get<double>());  // JSON Schema takes 64.0 for an integer
  return types == "number" ? value.is_number() : types == (value.is_number() ? "integer" : value.type_name());
}

std::string must_be(const Json& types) {
  std::vector<std::string> names;
  for (const Json& type : types.is_array() ? types : Json::array({types})) names.push_back(type_names.at(type));
  return fmt::format("must be {}", fmt::join(names, " or "));
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

std::string words_of(const Json& allowed) {
  std::vector<std::string> words;
  for (const Json& one : allowed) words.push_back(one.is_string() ? one.get<std::string>() : one.dump());
  return fmt::format("{}", fmt::join(words, ", "));
}

/// The number of elements, of fields, or of a text's characters in UTF-8.
size_t size_of(const Json& value) {
  if (!value.is_string()) return value.size();
  return static_cast<size_t>(std::ranges::count_if(value.get_ref<const std::string&>(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;  // true for the first byte of a character
  }));
}

bool matches(const std::string& text, const std::string& pattern) {
  static std::map<std::string, std::regex> compiled;
  const auto place = compiled.find(pattern);
  const std::regex& regex =
      place != compiled.end() ? place->second : compiled.emplace(pattern, std::regex(pattern)).first->second;
  // std::regex recurses for each character, so a long text would overflow the stack.
  constexpr size_t longest = 1000;
  return text.size() <= longest && std::regex_search(text, regex);
}

struct Deviation {
  std::string path, what;
};
using Deviations = std::vector<Deviation>;

class Inspection {
 public:
  explicit Inspection(const Json& root) : root_(root) {}

  Deviations of(const Json& schema, const Json& value) const {
    Deviations found;
    for (const auto& [keyword, operand] : schema.items()) {
      if (std::string wrong = wrong_itself(keyword, operand, schema, value); !wrong.empty()) {
        found.push_back({"", std::move(wrong)});
      }
      add_within(keyword, operand, schema, value, found);
    }
    return found;
  }

 private:
  /// Says what is wrong with the value without a look at its elements and fields; "" if nothing is.
  static std::string wrong_itself(std::string_view keyword, const Json& operand, const Json& schema,
                                  const Json& value) {
    if (keyword == "type") return has_type(value, operand) ? "" : must_be(operand);
    if (keyword == "enum" && std::ranges::find(operand, value) == operand.end())
      return fmt::format("{} is not allowed; one of {}", shown(value), words_of(operand));
    if (keyword == "const" && value != operand)
      return fmt::format("{} is not allowed; must be {}", shown(value), words_of(Json::array({operand})));
    if ((keyword == "minLength" && value.is_string()) || (keyword == "minItems" && value.is_array()) ||
        (keyword == "minProperties" && value.is_object())) {
      if (size_of(value) >= operand.get<size_t>()) return "";
      const char* what = value.is_string() ? "characters" : value.is_array() ? "elements" : "fields";
      return operand == 1 ? "must not be empty" : fmt::format("must have at least {} {}", operand.dump(), what);
    }
    if (keyword == "pattern" && value.is_string() && !matches(value, operand)) {
      return fmt::format("{} is not allowed; must be {}", shown(value),
                         schema.value("description", "like " + operand.get<std::string>()));
    }
    const char* limit = !value.is_number()                                    ? nullptr
                        : keyword == "minimum" && value < operand             ? "at least"
                        : keyword == "maximum" && value > operand             ? "at most"
                        : keyword == "exclusiveMinimum" && !(value > operand) ? "above"
                                                                              : nullptr;
    if (limit) return fmt::format("{} is out of range; must be {} {}", shown(value), limit, operand.dump());
    if (keyword == "uniqueItems" && value.is_array() &&
        std::set<Json>(value.begin(), value.end()).size() < value.size())
      return "must not have an element twice";
    return "";
  }

  /// Adds what other schemas, to which the keyword leads, say about the value, its elements and its fields.
  void add_within(std::string_view keyword, const Json& operand, const Json& schema, const Json& value,
                  Deviations& found) const {
    const auto add = [&](const Json& inner, const Json& part, const auto&... key) {
      for (Deviation& one : of(inner, part)) {
        (one.path.insert(0, fmt::format("{}{}", key, one.path.empty() ? "" : ".")), ...);
        found.push_back(std::move(one));
      }
    };
    if (keyword == "$ref") {
      add(referred(schema), value);
    } else if (keyword == "allOf") {
      for (const Json& part : operand) add(part, value);
    } else if (keyword == "anyOf") {
      Deviations of_choices = any_of(operand, value);
      std::ranges::move(of_choices, std::back_inserter(found));
    } else if (keyword == "if") {
      const auto branch = schema.find(of(operand, value).empty() ? "then" : "else");
      if (branch == schema.end()) return;
      const size_t before = found.size();
      add(*branch, value);
      const std::string where = branch->value("description", "");
      for (size_t i = before; i < found.size() && !where.empty(); ++i) found[i].what += " " + where;
    } else if (keyword == "items" && value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) add(operand, value[i], i);
    } else if (keyword == "required" && value.is_object()) {
      for (const Json& key : operand) {
        if (!value.contains(key.get_ref<const std::string&>())) found.push_back({key, "is missing"});
      }
    } else if (keyword == "properties" && value.is_object()) {
      for (const auto& [key, inner] : operand.items()) {
        if (const auto field = value.find(key); field != value.end()) add(inner, *field, key);
      }
    } else if (keyword == "propertyNames" && value.is_object()) {
      for (const auto& field : value.items()) add(operand, field.key(), field.key());
    } else if (keyword == "additionalProperties" && value.is_object()) {
      const Json named = schema.value("properties", Json::object());
      for (const auto& [key, field] : value.items()) {
        if (!named.contains(key)) add(operand, field, key);
      }
    }
  }

  /// If no choice fits the value, returns the problems of the last choice that allows the value's type. If no choice
  /// allows this type, returns the allowed types.
  Deviations any_of(const Json& choices, const Json& value) const {
    Json types = Json::array();
    Deviations found;
    for (const Json& choice : choices) {
      Deviations wrong = of(choice, value);
      if (wrong.empty()) return {};
      const Json& taken = referred(choice).at("type");
      types.insert(types.begin(), taken);
      if (has_type(value, taken)) found = std::move(wrong);
    }
    return found.empty() ? Deviations{{"", must_be(types)}} : found;
  }

  /// The schema to which a reference leads, else the schema itself.
  const Json& referred(const Json& schema) const {
    constexpr std::string_view place = "#/$defs/";
    const auto reference = schema.find("$ref");
    if (reference == schema.end()) return schema;
    const auto& text = reference->get_ref<const std::string&>();
    return root_.at("$defs").at(text.starts_with(place) ? text.substr(place.size()) : text);
  }

  const Json& root_;
};

}  // namespace

std::vector<std::string> deviations(const Json& schema, const Json& value) {
  std::vector<std::string> texts;
  for (const auto& [path, what] : Inspection(schema).of(schema, value)) {
    texts.push_back(path.empty() ? what : fmt::format("{}: {}", path, what));
  }
  return texts;
}

}  // namespace attn::kb
