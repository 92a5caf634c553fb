// Rewrites recorded runs once: findings of the first format become findings of the second format, subjects of
// proto7_variants become those that pooling uses, and kernels of today's texts get today's identity (tokens).
//   migrate OUT HOOKS FILE...    HOOKS: lines {"path": ..., "text": ...} of hooks that records may name
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "common/base/file.h"
#include "common/base/sha256.h"
#include "common/records/finding.h"
#include "findings/kb/record_input.h"
#include "findings/kb/runs.h"
#include "findings/kb/verify.h"

namespace attn::kb {
namespace {

struct Identity {
  std::string sha256;  // today's identity; empty: the text has changed, or is not known
  std::vector<SourceFile> hooks;
};

class Identities {
 public:
  explicit Identities(const std::string& hooks_file) : old_(expanded_text), same_(same_code()) {
    std::ifstream file(hooks_file);
    for (std::string line; std::getline(file, line);) {
      const Json hook = parse_json(line);
      const SourceFile one{hook.at("path"), hook.at("text")};
      hooks_[std::filesystem::path(one.path).filename().string() + ":" + sha256(one.text).substr(0, 8)] = one;
    }
  }

  const Identity& of(const Json& pipeline) {
    const std::string key = pipeline.at("key"), recorded = pipeline.at("source_sha256");
    const auto [place, added] = known_.try_emplace({key, recorded});
    if (!added) return place->second;
    Identity& found = place->second;
    for (const auto& [name, hook] : hooks_) {
      if (key.find(name) != key.npos) found.hooks.push_back(hook);
    }
    std::optional<KernelSource> source = parse_key(key, found.hooks);
    if (!source) return found;
    const auto later = same_.find(recorded);
    if (old_.name_files(*source, recorded) || (later != same_.end() && old_.name_files(*source, later->second))) {
      found.sha256 = source_sha256(*source);
    }
    return found;
  }

 private:
  KernelTexts old_;
  SameCode same_;
  std::map<std::string, SourceFile> hooks_;
  std::map<std::pair<std::string, std::string>, Identity> known_;
};

std::vector<Json*> pipelines_of(Json& measurement) {
  std::vector<Json*> found;
  if (measurement.contains("phases")) {
    for (Json& phase : measurement["phases"]) found.push_back(&phase["pipeline"]);
  }
  if (measurement.contains("pipeline")) found.push_back(&measurement["pipeline"]);
  std::erase_if(found, [](const Json* pipeline) { return !pipeline->is_object(); });
  return found;
}

double log_floor(const Json& compare) {
  return std::max(std::abs(std::log(compare.at("aa_ci_lo").get<double>())),
                  std::abs(std::log(compare.at("aa_ci_hi").get<double>())));
}

std::string with_new_id(Json& record) {
  record["id"] = record_id(record);
  return record.at("id");
}

Json header_of(const Json& finding) {
  const Json& data = finding.at("data");
  Json run = data.at("run");
  if (run.contains("file")) {
    if (!run.at("file").is_null()) throw std::runtime_error("a finding/1 with a file");
    run.erase("file");
    run["files"] = nullptr;
  }
  Json header = {{"schema", "run/1"},
                 {"id", ""},
                 {"experiment", data.at("experiment")},
                 {"run", run},
                 {"session",
                  {{"commit", data.value("/env/git/commit"_json_pointer, Json())},
                   {"diff", nullptr},
                   {"machine", nullptr},
                   {"files", Json::object()}}},
                 {"env", data.at("env")}};
  with_new_id(header);
  return header;
}

std::string subject_of(const Json& finding, const std::string& key) {
  const std::string device = "/" + finding.at("data").at("device").get<std::string>();
  const std::string rest = key.substr(key.find(device) + device.size());
  return rest.empty() ? rest : rest.substr(1);
}

/// The first seven of Run::conditions, which do not depend on the kernels.
std::string conditions_of(const Run& run) {
  size_t end = 0;
  for (int i = 0; i < 7; ++i) end = run.conditions.find('\n', end) + 1;
  return run.conditions.substr(0, end);
}

/// What the findings of a claim say together.
struct Claims {
  // By key and conditions: whether every finding is exact and has the same value, and this value.
  std::map<std::string, std::pair<bool, double>> exact;
  std::map<std::pair<std::string, std::string>, std::string> advice;  // by key and verdict, of findings/2
};

Claims claims_of(const std::vector<Json>& findings) {
  Claims claims;
  for (const Json& finding : findings) {
    const Json& data = finding.at("data");
    const std::string key = pooling_key(finding);
    Record record;
    record.kind = "finding";
    const Run run = run_of(record, finding, {});
    const auto [place, added] =
        claims.exact.try_emplace(key + conditions_of(run), run.exact, data.at("estimate").at("value").get<double>());
    place->second.first &= run.exact && data.at("estimate").at("value") == place->second.second;
    if (!data.value("advice", "").empty()) claims.advice[{key, data.at("verdict").at("state")}] = data.at("advice");
  }
  return claims;
}

Json second_of(const Json& first, const Codes& codes, const Claims& claims) {
  const Json& old = first.at("data");
  Record record;
  record.kind = "finding";
  record.state = old.at("verdict").at("state");
  Run run = run_of(record, first, codes);
  const std::string key = pooling_key(first);
  const Hypothesis hypothesis = hypothesis_of(old);

  Conclusion conclusion;
  conclusion.hypothesis = hypothesis.id;
  conclusion.subject = subject_of(first, key);
  conclusion.title = old.at("template").at("title");
  conclusion.content = old.at("template").at("content");
  for (const Json& tag : first.at("tags")) conclusion.tags.push_back(tag);
  conclusion.parts = run.session;
  // A finding/1 without a comparison does not tell its rounds; it counts as measured in enough rounds.
  for (Part& part : conclusion.parts) part.rounds = part.rounds == 0 ? min_rounds_to_judge : part.rounds;
  conclusion.prior = spread_of(old.at("device"), old.at("experiment"), run.kind);
  conclusion.relative = run.relative;
  conclusion.exact = run.exact && claims.exact.at(key + conditions_of(run)).first;
  conclusion.unit = run.unit;
  conclusion.correct = old.at("correct");
  conclusion.cv = old.at("estimate").at("cv");
  const Json& compare = old.at("compare");
  conclusion.floor =
      compare.is_null() ? 0 : std::log1p(compare.at("aa_floor").get<double>()) * (run.relative ? 1 : run.unit);
  if (conclusion.exact) {
    Pooled& exact = conclusion.estimate;
    exact.value = exact.ci_lo = exact.ci_hi = exact.next_lo = exact.next_hi = old.at("estimate").at("value");
    exact.processes = exact.sessions = 1;
  } else {
    conclusion.estimate =
        pool({&conclusion.parts, 1}, conclusion.prior, conclusion.relative, conclusion.relative ? 1 : conclusion.unit);
  }
  const Verdict verdict = judge(hypothesis, conclusion);

  const auto advice = claims.advice.find({key, std::string(name(verdict.state))});
  Json parts = Json::array();
  for (const Part& part : conclusion.parts) {
    parts.push_back({{"process", part.process}, {"value", part.value}, {"error", part.error}, {"rounds", part.rounds}});
  }
  Json compared = compare;
  if (!compare.is_null()) {
    compared["aa_floor"] = log_floor(compare);
    if (!compared.contains("clocks")) compared["clocks"] = nullptr;
  }
  Json data = {{"experiment", old.at("experiment")},
               {"device", old.at("device")},
               {"subject", conclusion.subject},
               {"selection", ""},
               {"hypothesis", old.at("hypothesis")},
               {"verdict", {{"state", name(verdict.state)}, {"reason", verdict.reason}}},
               {"advice", advice == claims.advice.end() ? "" : advice->second},
               {"estimate", estimate_json(conclusion)},
               {"parts", parts},
               {"correct", conclusion.correct},
               {"compare", compared},
               {"values", old.at("values")},
               {"measurements", old.at("measurements")},
               {"run", old.at("run").at("id")},
               {"template", old.at("template")}};
  if (old.at("hypothesis").at("id").get<std::string>().starts_with("ceiling")) {
    const Json& values = old.at("values");
    if (values.contains("q_len") && values.contains("kv_len"))
      data["selection"] = fmt::format("q_len={} kv_len={}", values["q_len"].dump(), values["kv_len"].dump());
  }
  for (const char* more : {"cases", "code"}) {
    if (old.contains(more)) data[more] = old.at(more);
  }
  Json second = {{"domain", first.at("domain")},
                 {"title", render(conclusion.title, data)},
                 {"content", render(conclusion.content, data)},
                 {"tags", first.at("tags")},
                 {"confidence", confidence(hypothesis, verdict, conclusion)},
                 {"source", first.at("source")},
                 {"schema", "finding/2"},
                 {"id", ""},
                 {"claim_key", key},
                 {"data", std::move(data)}};
  return second;
}

void migrate(const std::string& file, const std::string& out, Identities& identities, const Claims& claims,
             std::map<std::string, int>& counts) {
  RecordInput lines(file);
  std::vector<Json> records;
  std::vector<std::string> texts;
  for (std::string line; std::getline(lines, line);) records.push_back(parse_json(line));
  std::map<std::string, std::string> ids, code;  // old -> new
  Codes codes;
  for (const Json& record : records) {
    if (record.at("schema") == "measurement/1") codes[record.at("id")] = code_of(record);
  }
  std::vector<Json> result;
  std::set<std::string> headed, written_ids;
  for (Json& record : records) {
    const std::string schema = record.at("schema"), id = record.at("id");
    if (schema == "measurement/1") {
      for (Json* pipeline : pipelines_of(record)) {
        const std::string before = code_identity(*pipeline);
        const Identity& identity = identities.of(*pipeline);
        ++counts[identity.sha256.empty() ? "kernels of other texts" : "kernels of today"];
        if (!identity.sha256.empty()) (*pipeline)["source_sha256"] = identity.sha256;
        if (!identity.hooks.empty()) {
          Json hooks = Json::array();
          for (const SourceFile& hook : identity.hooks) hooks.push_back({{"file", hook.path}, {"text", hook.text}});
          Json more = Json::object();
          for (const auto& [name, value] : pipeline->items()) {
            more[name] = value;
            if (name == "key") more["hooks"] = hooks;
          }
          *pipeline = more;
        }
        code[before] = code_identity(*pipeline);
      }
      ids[id] = with_new_id(record);
      result.push_back(record);
    }
  }
  for (Json& record : records) {
    const std::string schema = record.at("schema");
    if (schema == "measurement/1") continue;
    if (schema == "run/1") {
      headed.insert(record.at("run").at("id"));
      result.push_back(record);
      continue;
    }
    Json finding = record;
    if (schema == "finding/1") {
      const Json header = header_of(record);
      if (headed.insert(header.at("run").at("id")).second) result.push_back(header);
      finding = second_of(record, codes, claims);
    } else {
      const std::string key = pooling_key(record);
      finding["data"]["subject"] = subject_of(record, key);
      finding["claim_key"] = key;
    }
    ++counts[schema];
    if (finding.at("data").at("subject") != record.at("data").at("subject")) ++counts["subjects changed"];
    if (finding.at("data").at("verdict").at("state") != record.at("data").at("verdict").at("state"))
      ++counts["verdicts changed"];
    for (Json& measured : finding["data"]["measurements"]) {
      if (const auto known = ids.find(measured); known != ids.end()) measured = known->second;
    }
    if (finding["data"].contains("code")) {
      for (Json& kernels : finding["data"]["code"]) {
        for (Json& kernel : kernels) {
          if (const auto known = code.find(kernel); known != code.end()) kernel = known->second;
        }
      }
    }
    // A resumed run may have judged a claim several times; without the time of the judgement the findings are the same.
    if (!written_ids.insert(with_new_id(finding)).second) {
      ++counts["the same finding again"];
      continue;
    }
    result.push_back(finding);
  }
  std::ofstream written(out);
  for (const Json& record : result) written << record.dump() << "\n";
}

}  // namespace
}  // namespace attn::kb

int main(int argc, char** argv) {
  using namespace attn::kb;
  Identities identities(argv[2]);
  std::map<std::string, int> counts;
  std::vector<attn::Json> findings;
  for (int i = 3; i < argc; ++i) {
    RecordInput lines(argv[i]);
    std::vector<attn::Json> records;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"schema\":\"measurement/1\"") == line.npos) records.push_back(attn::parse_json(line));
    }
    attn::join_runs(records);
    for (attn::Json& record : records) {
      if (record.at("schema") != "run/1") findings.push_back(std::move(record));
    }
  }
  const Claims claims = claims_of(findings);
  for (int i = 3; i < argc; ++i) {
    const std::filesystem::path file = argv[i];
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / file.parent_path().filename();
    std::filesystem::create_directories(folder);
    std::string name = file.filename();
    name.resize(name.size() - 3);  // .gz
    try {
      migrate(file, folder / name, identities, claims, counts);
    } catch (const std::exception& error) {
      std::cerr << file << ": " << error.what() << "\n";
    }
  }
  for (const auto& [what, count] : counts) std::cout << what << ": " << count << "\n";
}
