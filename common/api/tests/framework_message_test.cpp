// The compiler's message for a framework that lacks a member names the missing concept.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "common/base/file.h"
#include "common/base/temporary_folder.h"

namespace attn {
namespace {

TEST(FrameworkMessageTest, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string source = folder.path() / "wrong.cpp", messages = folder.path() / "messages";
  std::ofstream(source) << R"(
    #include "common/api/framework.h"
    struct HidesTensors {
      using Tensor = int;
      Tensor empty_like(const Tensor& tensor) const { return tensor; }
      void* stream() const { return nullptr; }
    };
    attn::WithAttention<HidesTensors>* wrong;
  )";
  const std::string command =
      fmt::format("{} -std=c++20 -fsyntax-only -I{} {} 2> {}", ATTN_CXX, ATTN_SOURCE_DIR, source, messages);
  EXPECT_NE(std::system(command.c_str()), 0);
  const std::string text = read_file(messages).value_or("");
  EXPECT_NE(text.find("ShowsTensors"), std::string::npos) << text;
  EXPECT_NE(text.find("view"), std::string::npos) << text;
}

}  // namespace
}  // namespace attn
