#include "common/base/json.h"

namespace attn {

Json parse_json(std::string_view text, bool throws) { return Json::parse(text, nullptr, throws); }

}  // namespace attn
