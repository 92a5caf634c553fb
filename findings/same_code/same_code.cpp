#include "findings/same_code/same_code.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "common/backends/cpu/compiler.h"
#include "common/backends/cuda/compiler.h"
#include "common/backends/cuda/cubin.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/parallel.h"
#include "common/base/progress.h"
#include "common/base/sha256.h"
#include "common/records/finding.h"
#include "findings/kb/record_input.h"

namespace attn::kb {
namespace {

/// Compiles a source and returns the SHA-256 of its machine code.
using CodeOf = std::function<std::string(const KernelSource&)>;

/// Returns a record's processor as a target of LLVM: LLVM's processor `arch`, with exactly the recorded features.
CpuTarget recorded_target(const Json& device) {
  CpuTarget host{.triple = CpuTarget::host().triple,
                 .arch = device.at("arch"),
                 .features = device.at("features").get<std::vector<std::string>>(),
                 .switches = {}};
  const CpuTarget known = CpuTarget::named(host.arch);
  CpuTarget target = known.within(host);
  for (const std::string& feature : host.features) {
    if (!known.has(feature)) target.switches.push_back("+" + feature);
  }
  std::sort(target.switches.begin(), target.switches.end());
  target.features = host.features;
  return target;
}

CodeOf compiler_of(const Json& device) {
  if (device.at("backend") == "cuda") {
    const auto compiler = std::make_shared<CudaCompiler>(device.at("arch").get<std::string>());
    // The data of a cubin may have constants that no instruction reads, so only the instructions are compared.
    return [compiler](const KernelSource& source) { return sha256(instructions_of(compiler->compile(source).code)); };
  }
  const auto compiler = std::make_shared<CpuCompiler>(recorded_target(device));
  return [compiler](const KernelSource& source) { return compiler->compile(source).code_sha256; };
}

/// While an object of this class exists, source_root() is `root`.
class RootedAt {
 public:
  explicit RootedAt(const std::string& root) : before_(source_root()) { name(root); }
  ~RootedAt() { name(before_); }
  RootedAt(const RootedAt&) = delete;
  RootedAt& operator=(const RootedAt&) = delete;

 private:
  static void name(const std::string& root) { setenv("ATTENTION_PROTO_SOURCE", root.c_str(), 1); }
  const std::string before_;
};

/// Puts the texts of all files of a source into `includes`, so that the source does not depend on source_root().
KernelSource carrying_its_text(KernelSource source) {
  for (KernelSource& fragment : source.fragments) fragment = carrying_its_text(fragment);
  for (const SourceFile& file : reached_sources(source)) source.includes[file.path] = file.text;
  return source;
}

struct Compared {
  const RecordedKernel* recorded;
  KernelSource before, today;
  std::string today_sha256, problem;  // `problem` is empty where the code is the same
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void compare_one(Compared& one, const CodeOf& code_of) {
  try {
    one.today_sha256 = source_sha256(one.today);
    const std::string code = code_of(one.today);
    // The recorded code was compiled from the old text.
    if (code != one.recorded->code_sha256 && code != code_of(one.before)) one.problem = "other machine code";
  } catch (const CompileError& error) {
    one.problem = "does not compile: " + first_line(std::string(error.log()));
  } catch (const BadInput& error) {
    one.problem = first_line(error.what());
  }
}

}  // namespace

std::vector<RecordedKernel> recorded_kernels(const std::vector<std::string>& files) {
  std::map<std::string, Json> devices;
  std::map<std::tuple<std::string, std::string, std::string>, RecordedKernel> found;  // device, hash, key
  for (const std::string& file : files) {
    RecordInput lines(file);
    std::vector<Json> records;
    for (std::string line; std::getline(lines, line);) {
      records.push_back(parse_json(line, false));
      if (records.back().is_discarded()) throw BadInput(file + ": a line is no JSON");
    }
    join_runs(records);
    for (const Json& record : records) {
      if (const Json::json_pointer device("/data/env/device"); record.contains(device)) {
        devices[record.at("data").at("device")] = record.at(device);
      }
      if (!record.contains("device")) continue;
      const std::string device = record.at("device");
      for (const Json& pipeline : kernels_of(record)) {
        const RecordedKernel kernel{pipeline.at("key"), pipeline.at("source_sha256"), pipeline.at("code_sha256"),
                                    device};
        found.try_emplace({device, kernel.source_sha256, kernel.key}, kernel);
      }
    }
  }
  std::vector<RecordedKernel> kernels;
  for (auto& [place, kernel] : found) {
    const auto device = devices.find(std::get<0>(place));
    if (device == devices.end()) throw BadInput(std::get<0>(place) + ": no finding describes this device");
    kernel.device = device->second;
    kernels.push_back(kernel);
  }
  return kernels;
}

CodeComparison compare_code(const std::vector<RecordedKernel>& kernels, const std::string& old_root,
                            const SameCode& known) {
  CodeComparison result;
  const auto tell = [&](const RecordedKernel& kernel, const std::string& what) {
    result.others.push_back(fmt::format("{} ({}): {}", kernel.key, kernel.device.at("arch").get<std::string>(), what));
  };
  std::vector<Compared> compared;
  std::set<std::string> not_same;  // recorded hashes whose code differs on at least one device
  for (const RecordedKernel& kernel : kernels) {
    const Freshness fresh = freshness({{"key", kernel.key}, {"source_sha256", kernel.source_sha256}}, known);
    result.current += fresh == Freshness::current;
    result.unknown += fresh == Freshness::unknown;
    if (fresh == Freshness::changed) compared.push_back({&kernel, *parse_key(kernel.key), {}, {}, {}});
  }
  {
    const RootedAt old(old_root);
    KernelTexts texts;
    std::erase_if(compared, [&](Compared& one) {
      const std::string& recorded = one.recorded->source_sha256;
      const auto later = known.find(recorded);
      if (texts.name_files(one.before, recorded) ||
          (later != known.end() && texts.name_files(one.before, later->second))) {
        one.today = one.before;
        one.before = carrying_its_text(one.before);
        return false;
      }
      tell(*one.recorded, "the old tree does not have the recorded text");
      not_same.insert(recorded);
      return true;
    });
  }
  std::map<std::string, CodeOf> compilers;
  for (const Compared& one : compared) {
    const std::string device = one.recorded->device.dump();
    if (!compilers.contains(device)) compilers[device] = compiler_of(one.recorded->device);
  }
  Progress progress(!isatty(STDERR_FILENO));
  progress.add(compared.size());
  std::mutex shown;
  parallel_for(std::ssize(compared), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      compare_one(compared[i], compilers.at(compared[i].recorded->device.dump()));
      const std::lock_guard lock(shown);
      progress.begin(compared[i].recorded->key);
      progress.finish("");
    }
  });
  progress.clear();
  for (const Compared& one : compared) {
    if (one.problem.empty()) continue;
    tell(*one.recorded, one.problem);
    not_same.insert(one.recorded->source_sha256);
  }
  for (const Compared& one : compared) {
    if (!not_same.contains(one.recorded->source_sha256)) result.same[one.recorded->source_sha256] = one.today_sha256;
  }
  return result;
}

std::string merged(const std::string& text, const SameCode& pairs) {
  std::istringstream lines(text);
  std::string head, recorded, today;
  SameCode all = pairs;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) {
      head += line + "\n";
    } else if (std::istringstream(line) >> recorded >> today) {
      all.try_emplace(recorded, today);
    }
  }
  for (const auto& [before, after] : all) head += fmt::format("{} {}\n", before, after);
  return head;
}

}  // namespace attn::kb
