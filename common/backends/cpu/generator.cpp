#include "common/backends/cpu/generator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <optional>
#include <vector>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/process.h"
#include "common/base/temporary_folder.h"
#include "common/source/python.h"

namespace attn {

std::string generated_object(const KernelSource& source, const CpuTarget& target) {
  const TemporaryFolder folder;
  // Runs a copy of the text that read_source() returns, because source_sha256() hashes this text.
  const std::string program = folder.path() / "program.py", object = folder.path() / "object.o";
  std::ofstream(program) << read_source(source, source.path);
  std::vector<std::string> arguments = {python(),     program,     object,
                                        source.entry, target.arch, fmt::format("{}", fmt::join(target.features, ","))};
  for (const auto& [name, value] : source.constants) arguments.push_back(fmt::format("{}={}", name, value));
  const ProcessResult result = run_process(arguments);
  const std::optional<std::string> code = read_file(object);
  if (result.status != 0 || !code) {
    throw CompileError(source.key(),
                       fmt::format("{} ends with status {}\n{}", source.path, result.status, result.output));
  }
  return *code;
}

}  // namespace attn
