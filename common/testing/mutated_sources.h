// Kernels that are broken on purpose, for tests that the checks find the errors.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/temporary_folder.h"
#include "common/source/kernel_source.h"
#include "common/testing/tested_device.h"

namespace attn::test {

/// Returns the first of these files that has the text `from`: `file`, and the headers that it reaches by #include.
/// Throws std::runtime_error if none has it.
inline SourceFile find_in_source(const std::string& file, const std::string& from) {
  const KernelSource kernel{.path = file, .entry = ""};
  // A header of another file may exist only as a text in KernelSource::includes.
  if (SourceFile own{file, read_source(kernel, file)}; own.text.find(from) != std::string::npos) return own;
  for (SourceFile& source : reached_sources(kernel)) {
    if (source.text.find(from) != std::string::npos) return std::move(source);
  }
  throw std::runtime_error(file + " and its headers have no text " + from);
}

/// Expects that the source tree has the text that each mutation replaces, also in kernels that cannot run on this
/// machine. `file_of` returns the file of a mutation.
template <typename Mutations, typename FileOf>
void expect_texts_in_sources(const Mutations& mutations, const FileOf& file_of) {
  for (const auto& mutation : mutations) EXPECT_NO_THROW(find_in_source(file_of(mutation), mutation.from));
}

/// During the object's lifetime, kernels are read from a copy of a folder; the other folders of kernels, and the files
/// of tuning, are links. In the copy the first `from` of `file`, or of the first header of `file` that has it, is
/// replaced by `to`. Throws std::runtime_error if there is no `from`.
class MutatedSources {
 public:
  MutatedSources(const std::string& file, const std::string& from, const std::string& to) {
    namespace fs = std::filesystem;
    const fs::path original = fs::absolute(source_root()), copy = root_.path();
    auto [path, text] = find_in_source(file, from);
    for (const std::string folder :
         {"common/kernel", "common/api/kernels", "common/device/kernels", "common/backends/metal/emulator/stdlib",
          "common/attention/kernels", "common/paged/kernels", "common/linear/kernels", "proto2_stitching/kernels",
          "proto5_codegen/kernels", "proto7_variants/kernels", "findings/tuning"}) {
      fs::create_directories((copy / folder).parent_path());
      if (path.starts_with(folder + "/")) {
        fs::copy(original / folder, copy / folder, fs::copy_options::recursive);
      } else {
        fs::create_directory_symlink(original / folder, copy / folder);
      }
    }
    std::ofstream(copy / path) << text.replace(text.find(from), from.size(), to);
    setenv("ATTENTION_PROTO_SOURCE", copy.c_str(), 1);
  }
  ~MutatedSources() { unsetenv("ATTENTION_PROTO_SOURCE"); }
  MutatedSources(const MutatedSources&) = delete;
  MutatedSources& operator=(const MutatedSources&) = delete;

 private:
  TemporaryFolder root_;
};

/// Expects that found(cache) describes no error of the kernels as they are, and an error if `from` in `file` is
/// replaced by `to`.
template <typename Found>
void expect_mutation_found(const std::string& file, const std::string& from, const std::string& to,
                           const Found& found) {
  ASSERT_EQ(found(pipelines()), "");
  const MutatedSources sources(file, from, to);
  PipelineCache fresh(device(), "");
  EXPECT_NE(found(fresh), "");
}

/// Expects that a check finds the error of a broken kernel. `passes` runs the kernel on a device and returns whether
/// the check passes. AddressSanitizer may find the error first and end the process. So, unless the device under test is
/// a cuda device, a build with AddressSanitizer runs the kernel in a child process, on a cpu device with one thread.
inline void expect_caught(Device& tested, const std::function<bool(Device&)>& passes, std::string_view what) {
  if (!on_cuda && std::string_view(ATTN_SANITIZE).find("address") != std::string_view::npos) {
    EXPECT_EXIT(
        _exit(passes(*Device::open("cpu:threads=1")) ? 0 : 1), [](int status) { return status != 0; }, "")
        << what;
  } else {
    EXPECT_FALSE(passes(tested)) << what;
  }
}

}  // namespace attn::test
