// proto1_flash_devices FROM TO: writes findings about two devices from their records. The program measures nothing.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/run_program.h"
#include "common/base/sha256.h"
#include "common/base/version.h"
#include "common/experiment/environment.h"
#include "common/experiment/report.h"
#include "common/records/finding.h"
#include "common/source/kernel_source.h"
#include "proto1_flash/transfer.h"

namespace {

using namespace attn;

DeviceRecords read_folder(const std::string& folder) {
  DeviceRecords records;
  std::vector<std::string> problems;
  const auto read = [&](const char* name) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    std::vector<Json> lines = read_records(path, problems);
    if (!problems.empty()) throw BadInput(fmt::format("{}: {}", path, problems.front()));
    if (lines.empty())
      throw BadInput(fmt::format(
          "{} has no records; FROM and TO must be folders with measurements.jsonl and findings.jsonl", path));
    return lines;
  };
  for (const Json& line : read("measurements.jsonl")) {
    if (line.value("experiment", "") == "proto1_flash") records.measurements.push_back(measurement_from_json(line));
  }
  for (Json& line : read("findings.jsonl")) {
    if (line.at("schema") == "run/1") continue;  // a run's header, which precedes the run's findings
    if (line.at("data").at("experiment") == "proto1_flash") records.findings.push_back(std::move(line));
  }
  return records;
}

void write_findings(const std::string& from, const std::string& to, const std::string& out) {
  const DeviceRecords a = read_folder(from), b = read_folder(to);
  RecordFile file(out);
  const std::string now = utc_now();
  const auto write = [&](const Conclusion& conclusion, const std::string& name, const std::string& command) {
    for (const Hypothesis& hypothesis : hypotheses(transfer_claims())) {
      if (hypothesis.id != conclusion.hypothesis) continue;
      const Json run = {{"id", sha256(now + name).substr(0, 12)},
                        {"ts", now},
                        {"argv", {"proto1_flash_devices", from, to}},
                        {"seed", 0},
                        {"replay", command},
                        {"profile", "recorded"},
                        {"device", name},
                        {"threadgroup_memory_bytes", nullptr},
                        {"input", nullptr}};
      Json header = {
          {"schema", "run/1"},
          {"id", ""},
          {"experiment", "proto1_flash"},
          {"run", run},
          {"session", session(source_root())},
          {"env", {{"version", version()}, {"host_compiler", host_compiler()}, {"git", git_state(source_root())}}}};
      header["id"] = record_id(header);
      file.append(header);
      Json finding = make_finding("proto1_flash", name, hypothesis, conclusion, run["id"]);
      finding["data"]["cases"] = Json::array();
      finding["id"] = record_id(finding);
      emit_finding(file, finding);
      fmt::print("{}", verdict_text(finding));
    }
  };
  const auto direction = [&](const DeviceRecords& x, const DeviceRecords& y, const std::string& x_path,
                             const std::string& y_path, bool verdicts) {
    for (const Conclusion& conclusion : transfer_conclusions(x, y)) {
      // The figure of verdicts_transfer is the same in both directions.
      if (conclusion.hypothesis == "verdicts_transfer" && !verdicts) continue;
      const std::string name = fmt::format("{} to {}", conclusion.values["from"].get<std::string>(),
                                           conclusion.values["to"].get<std::string>());
      write(conclusion, name, fmt::format("proto1_flash_devices {} {}", x_path, y_path));
    }
  };
  direction(a, b, from, to, true);
  direction(b, a, to, from, false);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Reads the records of two devices. Writes findings that say which tiles and verdicts of one device hold on the "
      "other device.",
      "proto1_flash_devices");
  add_help_and_version(app);
  app.footer("Exit status: 0 done; 1 a record or stdout could not be written; 2 bad arguments or records.");
  std::string from, to, out = "findings.jsonl";
  app.add_option("FROM", from, "folder with one device's measurements.jsonl and findings.jsonl")->required();
  app.add_option("TO", to, "folder with the other device's measurements.jsonl and findings.jsonl")->required();
  app.add_option("--out", out, "file that findings are appended to")->type_name("FILE")->capture_default_str();
  return run_program("proto1_flash_devices", [&] {
    if (!parse_command_line(app, argc, argv)) return 0;
    try {
      write_findings(from, to, out);
    } catch (const Json::exception& error) {
      throw BadInput(fmt::format("a record is not as docs/records.md says: {}", error.what()));
    }
    return 0;
  });
}
