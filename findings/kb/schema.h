// A small interpreter of JSON Schema, draft 2020-12: the keywords that findings/record.schema.json uses, no others.
#pragma once

#include <map>
#include <regex>
#include <string>
#include <vector>

#include "common/records/record_file.h"

namespace attn::kb {

class Schema {
 public:
  /// Throws std::invalid_argument where the schema has a keyword, or a form of one, that is not known here.
  explicit Schema(Json schema);
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  /// Each deviation of a value as "path: what is wrong, what is allowed"; empty where there is none. The description
  /// of a pattern tells messages what it allows, that of a then or an else in which cases it holds.
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
