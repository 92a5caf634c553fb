#include "findings/kb/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace attn::kb {
namespace {

/// The types of JSON Schema, as messages call them.
const std::map<std::string, std::string> type_names = {
    {"array", "a list"},    {"boolean", "true or false"}, {"integer", "an integer"}, {"null", "null"},
    {"number", "a number"}, {"object", "an object"},      {"string", "a text"}};

bool has_type(const Json& value, const Json& type) {
  if (type == "integer" && value.is_number_float())
    return value == std::trunc(value.get<double>());  // JSON Schema takes 64.0 for an integer
  return type == "number" ? value.is_number() : type == (value.is_number() ? "integer" : value.type_name());
}

bool has_one_of(const Json& value, const std::vector<Json>& types) {
  return std::ranges::any_of(types, [&](const Json& type) { return has_type(value, type); });
}

/// The types that the operand of `type` names: one or a list.
std::vector<Json> types_of(const Json& operand) {
  return operand.is_array() ? operand.get<std::vector<Json>>() : std::vector<Json>{operand};
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

std::string word_of(const Json& allowed) { return allowed.is_string() ? allowed.get<std::string>() : allowed.dump(); }

/// The number of elements, of fields, or of a text's characters in UTF-8.
size_t size_of(const Json& value) {
  if (!value.is_string()) return value.size();
  return static_cast<size_t>(std::ranges::count_if(value.get_ref<const std::string&>(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;  // true for the first byte of a character
  }));
}

}  // namespace

class Inspection {
 public:
  /// The keys that lead to a value in the record. path() makes their text, for messages only.
  struct Place {
    const Place* parent = nullptr;
    std::string_view key = {};
    size_t index = 0;  // the place in a list; used if `key` is not set

    std::string path() const {
      if (!parent) return "";
      const std::string above = parent->path(), last = key.data() ? std::string(key) : std::to_string(index);
      return above.empty() ? last : above + "." + last;
    }
  };

  explicit Inspection(const Schema& schema) : schema_(schema) {}

  void check(const Json& schema, const Json& value, const Place& place) {
    for (const auto& [name, operand] : schema.items()) {
      const Keyword& keyword = keywords().find(name)->second;
      if (keyword.rule && (!keyword.applies || (value.*keyword.applies)()))
        (this->*keyword.rule)({name, schema, operand, value, place});
    }
  }

  std::vector<std::string> problems;

  struct Question {
    const std::string& keyword;
    const Json &schema, &operand, &value;
    const Place& place;
  };
  /// How many schemas the operand of a keyword has.
  enum class Inner { none, one, several };
  struct Keyword {
    Inner inner = Inner::none;
    void (Inspection::*rule)(const Question&) = nullptr;  // null: the keyword checks nothing itself
    bool (Json::*applies)() const noexcept = nullptr;     // the values to which the rule applies; null: all
  };
  static const std::map<std::string, Keyword>& keywords() {
    using I = Inspection;
    static const std::map<std::string, Keyword> all = {
        {"$schema", {}},
        {"title", {}},
        {"description", {}},
        {"$defs", {Inner::several}},
        {"$ref", {Inner::none, &I::reference}},
        {"type", {Inner::none, &I::type}},
        {"enum", {Inner::none, &I::one_of}},
        {"const", {Inner::none, &I::constant}},
        {"minLength", {Inner::none, &I::at_least, &Json::is_string}},
        {"minItems", {Inner::none, &I::at_least, &Json::is_array}},
        {"minProperties", {Inner::none, &I::at_least, &Json::is_object}},
        {"pattern", {Inner::none, &I::pattern, &Json::is_string}},
        {"minimum", {Inner::none, &I::limit, &Json::is_number}},
        {"exclusiveMinimum", {Inner::none, &I::limit, &Json::is_number}},
        {"maximum", {Inner::none, &I::limit, &Json::is_number}},
        {"uniqueItems", {Inner::none, &I::unique_items, &Json::is_array}},
        {"items", {Inner::one, &I::items, &Json::is_array}},
        {"required", {Inner::none, &I::required, &Json::is_object}},
        {"properties", {Inner::several, &I::properties, &Json::is_object}},
        {"propertyNames", {Inner::one, &I::property_names, &Json::is_object}},
        {"additionalProperties", {Inner::one, &I::additional_properties, &Json::is_object}},
        {"allOf", {Inner::several, &I::all_of}},
        {"anyOf", {Inner::several, &I::any_of}},
        {"if", {Inner::one, &I::condition}},
        {"then", {Inner::one}},
        {"else", {Inner::one}}};
    return all;
  }

 private:
  void say(const Place& place, const std::string& what) {
    const std::string path = place.path();
    problems.push_back(path.empty() ? what : fmt::format("{}: {}", path, what));
  }
  void say_must_be(const std::vector<Json>& types, const Place& place) {
    std::vector<std::string> names;
    for (const Json& type : types) names.push_back(type_names.at(type));
    say(place, fmt::format("must be {}", fmt::join(names, " or ")));
  }

  std::vector<std::string> problems_of(const Json& schema, const Json& value, const Place& place) const {
    Inspection inside(schema_);
    inside.check(schema, value, place);
    return std::move(inside.problems);
  }
  const Json& direct(const Json& schema) const {
    const auto reference = schema.find("$ref");
    return reference == schema.end() ? schema : *schema_.referred_.at(*reference);
  }

  void reference(const Question& q) { check(direct(q.schema), q.value, q.place); }
  void type(const Question& q) {
    const std::vector<Json> types = types_of(q.operand);
    if (!has_one_of(q.value, types)) say_must_be(types, q.place);
  }
  void one_of(const Question& q) {
    if (std::ranges::find(q.operand, q.value) != q.operand.end()) return;
    std::vector<std::string> words;
    for (const Json& allowed : q.operand) words.push_back(word_of(allowed));
    say(q.place, fmt::format("{} is not allowed; one of {}", shown(q.value), fmt::join(words, ", ")));
  }
  void constant(const Question& q) {
    if (q.value == q.operand) return;
    say(q.place, fmt::format("{} is not allowed; must be {}", shown(q.value), word_of(q.operand)));
  }
  void at_least(const Question& q) {
    if (size_of(q.value) >= q.operand.get<size_t>()) return;
    const char* what = q.value.is_string() ? "characters" : q.value.is_array() ? "elements" : "fields";
    say(q.place,
        q.operand == 1 ? "must not be empty" : fmt::format("must have at least {} {}", q.operand.dump(), what));
  }
  void pattern(const Question& q) {
    const auto& pattern = q.operand.get_ref<const std::string&>();
    const auto& text = q.value.get_ref<const std::string&>();
    // std::regex recurses for each character, so a long text would overflow the stack.
    constexpr size_t longest = 1000;
    if (text.size() <= longest && std::regex_search(text, schema_.patterns_.at(pattern))) return;
    say(q.place,
        fmt::format("{} is not allowed; must be {}", shown(q.value), q.schema.value("description", "like " + pattern)));
  }
  void limit(const Question& q) {
    const bool is_least = q.keyword == "minimum", is_most = q.keyword == "maximum";
    if (is_least ? q.value >= q.operand : is_most ? q.value <= q.operand : q.value > q.operand) return;
    const char* wanted = is_least ? "at least" : is_most ? "at most" : "above";
    say(q.place, fmt::format("{} is out of range; must be {} {}", shown(q.value), wanted, q.operand.dump()));
  }
  void unique_items(const Question& q) {
    const std::set<Json> different(q.value.begin(), q.value.end());
    if (different.size() < q.value.size()) say(q.place, "must not have an element twice");
  }
  void items(const Question& q) {
    for (size_t i = 0; i < q.value.size(); ++i) check(q.operand, q.value[i], {&q.place, {}, i});
  }
  void required(const Question& q) {
    for (const Json& key : q.operand) {
      const auto& name = key.get_ref<const std::string&>();
      if (!q.value.contains(name)) say({&q.place, name}, "is missing");
    }
  }
  void properties(const Question& q) {
    for (const auto& [key, schema] : q.operand.items()) {
      if (const auto field = q.value.find(key); field != q.value.end()) check(schema, *field, {&q.place, key});
    }
  }
  void property_names(const Question& q) {
    for (const auto& item : q.value.items()) check(q.operand, item.key(), {&q.place, item.key()});
  }
  void additional_properties(const Question& q) {
    const auto named = q.schema.find("properties");
    for (const auto& [key, field] : q.value.items()) {
      if (named == q.schema.end() || !named->contains(key)) check(q.operand, field, {&q.place, key});
    }
  }
  void all_of(const Question& q) {
    for (const Json& part : q.operand) check(part, q.value, q.place);
  }
  /// If no choice fits the value, reports the problems of the last choice that allows the value's type. If no choice
  /// allows this type, reports the allowed types.
  void any_of(const Question& q) {
    std::vector<Json> types;
    std::vector<std::string> found;
    for (const Json& choice : q.operand) {
      std::vector<std::string> wrong = problems_of(choice, q.value, q.place);
      if (wrong.empty()) return;
      const std::vector<Json> taken = types_of(direct(choice).at("type"));
      types.insert(types.begin(), taken.begin(), taken.end());
      if (has_one_of(q.value, taken)) found = std::move(wrong);
    }
    if (found.empty()) say_must_be(types, q.place);
    problems.insert(problems.end(), found.begin(), found.end());
  }
  void condition(const Question& q) {
    const auto branch = q.schema.find(problems_of(q.operand, q.value, q.place).empty() ? "then" : "else");
    if (branch == q.schema.end()) return;
    const std::string where = branch->value("description", "");
    for (const std::string& problem : problems_of(*branch, q.value, q.place)) {
      problems.push_back(where.empty() ? problem : fmt::format("{} {}", problem, where));
    }
  }

  const Schema& schema_;
};

Schema::Schema(Json schema) : schema_(std::move(schema)) { prepare(schema_); }

/// Compiles the patterns, finds what the references lead to, and refuses what an Inspection does not know.
void Schema::prepare(const Json& schema) {
  for (const auto& [name, operand] : schema.items()) {
    const auto keyword = Inspection::keywords().find(name);
    if (keyword == Inspection::keywords().end()) throw std::invalid_argument("an unknown keyword of a schema: " + name);
    if (keyword->second.inner == Inspection::Inner::one) prepare(operand);
    if (keyword->second.inner == Inspection::Inner::several) {
      for (const Json& inner : operand) prepare(inner);
    }
    if (name == "pattern") patterns_.try_emplace(operand, operand.get<std::string>(), std::regex::optimize);
    if (name != "$ref") continue;
    const std::string pointer = operand;
    const Json::json_pointer place(pointer.starts_with("#/") ? pointer.substr(1) : "/");
    if (!schema_.contains(place)) throw std::invalid_argument("a schema's reference that leads nowhere: " + pointer);
    referred_[pointer] = &schema_.at(place);
  }
}

std::vector<std::string> Schema::problems(const Json& value) const {
  Inspection inspection(*this);
  inspection.check(schema_, value, {});
  return inspection.problems;
}

}  // namespace attn::kb
