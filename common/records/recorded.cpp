#include "common/records/recorded.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/shell.h"
#include "common/records/record_file.h"

namespace attn {

std::vector<std::string> recorded_files(const std::string& source_tree) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& folder : std::filesystem::directory_iterator(source_tree + "/findings/recorded", none)) {
    if (!folder.is_directory()) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (is_record_file(file.path().string())) files.push_back(file.path());
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
  std::map<std::string, std::string> headers;  // the lines by the id of the run
  std::vector<std::string> lines, found;
  std::set<std::string> runs;
  char* text = nullptr;
  size_t room = 0;
  for (ssize_t size; (size = getline(&text, &room, pipe)) > 0;) {
    std::string line(text, static_cast<size_t>(size));
    if (line.ends_with('\n')) line.pop_back();
    const bool is_header = line.find("\"schema\":\"run/1\"") != line.npos;
    if (!is_header && line.find("\"id\":\"" + digits) == line.npos) continue;  // parsing every line would take long
    const Json record = parse_json(line, false);
    if (is_header) headers[text_at(record, "/run/id")] = line;
    if (!text_at(record, "/id").starts_with(digits)) continue;
    runs.insert(text_at(record, "/data/run"));
    found.push_back(std::move(line));
  }
  std::free(text);
  if (const int status = pclose(pipe); WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    throw BadInput("the id is none of the records here, and gzip, which unpacks findings/recorded, is not installed");
  } else if (status != 0) {
    throw std::runtime_error(source_tree + "/findings/recorded: gzip cannot unpack all files");
  }
  for (const auto& [run, header] : headers) {
    if (runs.contains(run)) lines.push_back(header);
  }
  lines.insert(lines.end(), found.begin(), found.end());
  return lines;
}

}  // namespace attn
