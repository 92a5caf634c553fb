// same_code: adds recorded kernels that have another text today, but the same machine code, to findings/same_code.txt,
// for kb verify.
#include <fmt/format.h>

#include <filesystem>

#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/run_program.h"
#include "common/records/recorded.h"
#include "common/source/kernel_source.h"
#include "findings/kb/record_input.h"
#include "findings/same_code/same_code.h"

namespace {

int compare(const std::string& old_root, std::vector<std::string> files, std::string out, bool dry) {
  using namespace attn;
  if (out.empty() && !dry && !files.empty()) {
    throw BadInput("FILE needs --out LIST or --dry-run: findings/same_code.txt is about the runs in findings/recorded");
  }
  if (out.empty()) out = source_root() + "/findings/same_code.txt";
  if (files.empty()) files = recorded_files(source_root());
  kb::require_output(out, files);
  const kb::CodeComparison result = kb::compare_code(kb::recorded_kernels(files), old_root, kb::same_code());
  for (const std::string& other : result.others) fmt::print("{}\n", other);
  fmt::print(
      "kernels: {} current, {} changed with the same machine code, {} changed otherwise, {} with incomplete keys\n",
      result.current, result.same.size(), result.others.size(), result.unknown);
  if (dry || result.same.empty()) return 0;
  const std::string text = kb::merged(read_file(out).value_or(""), result.same);
  if (!PendingFile(out).write(text)) throw std::runtime_error(out + ": cannot be written");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string old_root, out;
  std::vector<std::string> files;
  bool dry = false;
  CLI::App app(
      "Adds recorded kernels that have another text today, but the same machine code, to findings/same_code.txt. "
      "Prints the other kernels whose text has changed, and why each of them is not added.",
      "same_code");
  attn::add_help_and_version(app);
  app.add_option("--old", old_root, "a checkout with the old texts, for example made by git worktree add")
      ->required()
      ->type_name("FOLDER")
      ->check(CLI::ExistingDirectory.description(""));
  app.add_option("--out", out, "the list to add to; default with no FILE: findings/same_code.txt")->type_name("LIST");
  app.add_flag("--dry-run", dry, "print only");
  app.add_option("FILE", files, "record files, plain or gzip; default: all of findings/recorded");
  app.footer("Exit status: 0 done; 1 the list or stdout could not be written; 2 bad arguments or records.");
  return attn::run_program("same_code", [&] {
    if (!attn::parse_command_line(app, argc, argv)) return 0;
    try {
      return compare(std::filesystem::absolute(old_root), files, out, dry);
    } catch (const attn::Json::exception& error) {
      throw attn::BadInput(fmt::format("a record is not as docs/records.md says: {}", error.what()));
    }
  });
}
