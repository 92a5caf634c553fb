// A small interpreter of JSON Schema, draft 2020-12. It knows only the keywords that findings/record.schema.json uses.
#pragma once

#include <map>
#include <regex>
#include <string>
#include <vector>

#include "common/base/json.h"

namespace attn::kb {

class Schema {
 public:
  /// Throws std::invalid_argument if the schema has a keyword that is not known, or a reference that leads nowhere.
  explicit Schema(Json schema);
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  /// Returns each deviation of a value as "path: what is wrong, what is allowed"; nothing for a sound value. For a
  /// `pattern`, the `description` in the same schema says what is allowed. A message from a `then` or an `else` ends
  /// with the `description` of that branch, which says when the rule holds.
  std::vector<std::string> problems(const Json& value) const;

 private:
  friend class Inspection;
  void prepare(const Json& schema);

  Json schema_;
  std::map<std::string, const Json*> referred_;
  std::map<std::string, std::regex> patterns_;
};

/// The text of findings/record.schema.json.
extern const char* const record_schema;

}  // namespace attn::kb
