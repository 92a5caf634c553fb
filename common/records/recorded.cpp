#include "common/records/recorded.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/shell.h"

namespace attn {

std::vector<std::string> recorded_files(const std::string& source_tree) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& folder : std::filesystem::directory_iterator(source_tree + "/findings/recorded", none)) {
    if (!folder.is_directory()) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().string().ends_with(".jsonl.gz")) files.push_back(file.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> recorded_lines(const std::string& source_tree, const std::string& digits) {
  std::vector<std::string> command = {"gzip", "-dc"};
  for (std::string& file : recorded_files(source_tree)) command.push_back(std::move(file));
  if (command.size() == 2) return {};
  std::FILE* const pipe = popen((shell_command(command) + " 2> /dev/null").c_str(), "r");
  if (!pipe) throw std::runtime_error("gzip cannot be started");
  std::vector<std::string> headers, found;
  std::set<std::string> runs;
  const std::string has_id = "\"id\":\"" + digits;  // parsing every line would take long
  char* text = nullptr;
  size_t room = 0;
  for (ssize_t size; (size = getline(&text, &room, pipe)) > 0;) {
    std::string line(text, static_cast<size_t>(size));
    if (line.ends_with('\n')) line.pop_back();
    if (line.find("\"schema\":\"run/1\"") != line.npos) headers.push_back(line);
    if (line.find(has_id) == line.npos) continue;
    const Json record = parse_json(line, false);
    if (!record.is_object() || !record.value("id", "").starts_with(digits)) continue;
    const Json run = record.value("/data/run"_json_pointer, Json());
    if (run.is_string()) runs.insert(run.get<std::string>());
    found.push_back(std::move(line));
  }
  std::free(text);
  if (const int status = pclose(pipe); WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    throw BadInput("the id is none of the records here, and gzip, which unpacks findings/recorded, is not installed");
  } else if (status != 0) {
    throw std::runtime_error(source_tree + "/findings/recorded: gzip cannot unpack all files");
  }
  std::erase_if(headers, [&](const std::string& line) {
    const Json header = parse_json(line, false);
    const bool named = runs.contains(header.value("/run/id"_json_pointer, Json("")).get<std::string>());
    return !named || std::ranges::find(found, line) != found.end();
  });
  headers.insert(headers.end(), found.begin(), found.end());
  return headers;
}

}  // namespace attn
