#include "common/base/json.h"

namespace attn {

Json parse_json(std::string_view text, bool throws) { return Json::parse(text, nullptr, throws); }

Json parse_shallow_json(std::string_view text, int most_depth) {
  bool deep = false;
  const auto keep = [&](int depth, Json::parse_event_t, Json&) { return !(deep |= depth > most_depth); };
  Json json = Json::parse(text, keep, false);
  return deep ? Json(Json::value_t::discarded) : json;
}

Json value_at(const Json& json, const char* pointer) {
  return json.is_object() ? json.value(Json::json_pointer(pointer), Json()) : Json();
}

std::string text_at(const Json& json, const char* pointer) {
  const Json value = value_at(json, pointer);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace attn
