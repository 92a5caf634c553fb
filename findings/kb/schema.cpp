#include "findings/kb/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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

bool is_any(const Json&) { return true; }
bool is_text(const Json& operand) { return operand.is_string(); }
bool is_flag(const Json& operand) { return operand.is_boolean(); }
bool is_number(const Json& operand) { return operand.is_number(); }
bool is_size(const Json& operand) { return operand.is_number_unsigned(); }
bool is_scalar(const Json& operand) { return operand.is_primitive(); }
bool is_type(const Json& operand) { return operand.is_string() && type_names.contains(operand.get<std::string>()); }
bool is_schema(const Json& operand) { return operand.is_object(); }

template <bool (*fits)(const Json&)>
bool is_list_of(const Json& operand) {
  return operand.is_array() && std::all_of(operand.begin(), operand.end(), fits);
}
bool is_type_or_types(const Json& operand) { return is_type(operand) || is_list_of<is_type>(operand); }
bool is_object_of_schemas(const Json& operand) {
  return operand.is_object() && std::all_of(operand.begin(), operand.end(), is_schema);
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

std::string word_of(const Json& allowed) { return allowed.is_string() ? allowed.get<std::string>() : allowed.dump(); }

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
      const bool applies = keyword.to == Of::any || (keyword.to == Of::text && value.is_string()) ||
                           (keyword.to == Of::number && value.is_number()) ||
                           (keyword.to == Of::list && value.is_array()) ||
                           (keyword.to == Of::object && value.is_object());
      if (applies) (this->*keyword.rule)({schema, operand, value, place});
    }
  }

  std::vector<std::string> problems;

  struct Question {
    const Json &schema, &operand, &value;
    const Place& place;
  };
  /// The type of the values that a keyword applies to. Values of other types pass. `none`: the keyword checks nothing
  /// itself.
  enum class Of { none, any, text, number, list, object };
  struct Keyword {
    bool (*operand_fits)(const Json&);
    Of to = Of::none;
    void (Inspection::*rule)(const Question&) = nullptr;
  };
  static const std::map<std::string, Keyword>& keywords() {
    using I = Inspection;
    static const std::map<std::string, Keyword> all = {
        {"$schema", {is_any}},
        {"title", {is_any}},
        {"description", {is_text}},
        {"$defs", {is_object_of_schemas}},
        {"$ref", {is_text, Of::any, &I::reference}},
        {"type", {is_type_or_types, Of::any, &I::type}},
        {"enum", {is_list_of<is_scalar>, Of::any, &I::one_of}},
        {"const", {is_scalar, Of::any, &I::constant}},
        {"minLength", {is_size, Of::text, &I::min_length}},
        {"pattern", {is_text, Of::text, &I::pattern}},
        {"minimum", {is_number, Of::number, &I::minimum}},
        {"exclusiveMinimum", {is_number, Of::number, &I::exclusive_minimum}},
        {"maximum", {is_number, Of::number, &I::maximum}},
        {"minItems", {is_size, Of::list, &I::min_items}},
        {"uniqueItems", {is_flag, Of::list, &I::unique_items}},
        {"items", {is_schema, Of::list, &I::items}},
        {"required", {is_list_of<is_text>, Of::object, &I::required}},
        {"minProperties", {is_size, Of::object, &I::min_properties}},
        {"properties", {is_object_of_schemas, Of::object, &I::properties}},
        {"propertyNames", {is_schema, Of::object, &I::property_names}},
        {"additionalProperties", {is_schema, Of::object, &I::additional_properties}},
        {"allOf", {is_list_of<is_schema>, Of::any, &I::all_of}},
        {"anyOf", {is_list_of<is_schema>, Of::any, &I::any_of}},
        {"if", {is_schema, Of::any, &I::condition}},
        {"then", {is_schema}},
        {"else", {is_schema}}};
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
  static std::vector<Json> types_of(const Json& operand) {
    return operand.is_array() ? operand.get<std::vector<Json>>() : std::vector<Json>{operand};
  }
  static bool has_one_of(const Json& value, const std::vector<Json>& types) {
    return std::any_of(types.begin(), types.end(), [&](const Json& type) { return has_type(value, type); });
  }

  void reference(const Question& q) { check(direct(q.schema), q.value, q.place); }
  void type(const Question& q) {
    if (q.operand.is_string() && has_type(q.value, q.operand)) return;
    const std::vector<Json> types = types_of(q.operand);
    if (!has_one_of(q.value, types)) say_must_be(types, q.place);
  }
  void one_of(const Question& q) {
    if (std::find(q.operand.begin(), q.operand.end(), q.value) != q.operand.end()) return;
    std::vector<std::string> words;
    std::transform(q.operand.begin(), q.operand.end(), std::back_inserter(words), word_of);
    say(q.place, fmt::format("{} is not allowed; one of {}", shown(q.value), fmt::join(words, ", ")));
  }
  void constant(const Question& q) {
    if (q.value == q.operand) return;
    say(q.place, fmt::format("{} is not allowed; must be {}", shown(q.value), word_of(q.operand)));
  }

  void at_least(const Question& q, size_t size, const char* what) {
    if (size >= q.operand.get<size_t>()) return;
    say(q.place,
        q.operand == 1 ? "must not be empty" : fmt::format("must have at least {} {}", q.operand.dump(), what));
  }
  void min_length(const Question& q) {
    const auto& text = q.value.get_ref<const std::string&>();
    const auto begins = [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
    };  // true for the first byte of a character in UTF-8
    at_least(q, static_cast<size_t>(std::count_if(text.begin(), text.end(), begins)), "characters");
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
  void minimum(const Question& q) {
    if (q.value < q.operand) out_of_range(q, "at least");
  }
  void exclusive_minimum(const Question& q) {
    if (q.value <= q.operand) out_of_range(q, "above");
  }
  void maximum(const Question& q) {
    if (q.value > q.operand) out_of_range(q, "at most");
  }
  void out_of_range(const Question& q, const char* wanted) {
    say(q.place, fmt::format("{} is out of range; must be {} {}", shown(q.value), wanted, q.operand.dump()));
  }

  void min_items(const Question& q) { at_least(q, q.value.size(), "elements"); }
  void unique_items(const Question& q) {
    const std::set<Json> different(q.value.begin(), q.value.end());
    if (q.operand == true && different.size() < q.value.size()) say(q.place, "must not have an element twice");
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
  void min_properties(const Question& q) { at_least(q, q.value.size(), "fields"); }
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

Schema::Schema(Json schema) : schema_(std::move(schema)) {
  if (!is_schema(schema_)) throw std::invalid_argument("a schema must be an object");
  prepare(schema_);
}

/// Refuses unknown keywords and operands, so that an Inspection need not check them.
void Schema::prepare(const Json& schema) {
  for (const auto& [name, operand] : schema.items()) {
    const auto keyword = Inspection::keywords().find(name);
    if (keyword == Inspection::keywords().end()) throw std::invalid_argument("an unknown keyword of a schema: " + name);
    const auto& fits = keyword->second.operand_fits;
    const auto refuse = [&, &name = name, &operand = operand] {
      throw std::invalid_argument(fmt::format("a schema's {} has a form that is not known: {}", name, shown(operand)));
    };
    if (!fits(operand)) refuse();
    if (fits == is_schema) prepare(operand);
    if (fits == is_list_of<is_schema> || fits == is_object_of_schemas) {
      for (const Json& inner : operand) prepare(inner);
    }
    if (name == "pattern") patterns_.try_emplace(operand, operand.get<std::string>(), std::regex::optimize);
    if (name == "$ref") {
      const std::string pointer = operand;
      if (!pointer.starts_with("#/")) refuse();
      const Json::json_pointer place(pointer.substr(1));
      if (!schema_.contains(place)) refuse();
      referred_[pointer] = &schema_.at(place);
    }
    const auto names_a_type = [&](const Json& choice) {
      return choice.contains("type") || (choice.contains("$ref") && referred_.at(choice["$ref"])->contains("type"));
    };
    if (name == "anyOf" && !std::all_of(operand.begin(), operand.end(), names_a_type)) refuse();
  }
}

std::vector<std::string> Schema::problems(const Json& value) const {
  Inspection inspection(*this);
  inspection.check(schema_, value, {});
  return inspection.problems;
}

}  // namespace attn::kb
