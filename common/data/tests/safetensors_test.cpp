#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/data/tensor.h"
#include "common/testing/messages.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

/// A file put together by hand, so that reader and writer are not tested only against each other.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(uint64_t{header.size()} >> 8 * i);
  return file + header + data;
}

std::map<std::string, StoredTensor> parse(const std::string& file, const std::vector<std::string>& names = {"q"}) {
  return parse_safetensors(std::as_bytes(std::span(file)), "some.safetensors", names);
}

/// The message of the BadInput that parsing throws.
std::string error_of(const std::string& file, const std::vector<std::string>& names = {"q"}) {
  return test::message_of<BadInput>([&] { parse(file, names); });
}

std::string q_header(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"q":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

class SafetensorsFile : public ::testing::Test {
 protected:
  std::string path(const std::string& file) const { return folder() / file; }
  const fs::path& folder() const { return folder_.path(); }
  std::string contents(const std::string& file) const {
    std::ifstream in(path(file), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& file, const std::string& text) const {
    std::ofstream(path(file), std::ios::binary) << text;
  }

 private:
  const TemporaryFolder folder_;
};

TEST(SafetensorsTest, ReadsAHandMadeFile) {
  const std::string header = R"({"__metadata__":{"format":"pt"},"v":{"dtype":"BF16","shape":[],"data_offsets":[6,8]},)"
                             R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                             R"("q":{"dtype":"F16","shape":[1,3],"data_offsets":[0,6]}}   )";
  const auto tensors = parse(file_of(header, "abcdefghijklmnop"), {"v", "q"});
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("q").dtype, DType::f16);
  EXPECT_EQ(tensors.at("q").shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(text_of(tensors.at("q").data), "abcdef");
  EXPECT_EQ(tensors.at("v").dtype, DType::bf16);
  EXPECT_TRUE(tensors.at("v").shape.empty());
  EXPECT_EQ(text_of(tensors.at("v").data), "gh");

  const auto empty = parse(file_of(q_header(R"("F32")", "[2,0,4]", "[0,0]"), ""));
  EXPECT_EQ(empty.at("q").shape, (std::vector<int64_t>{2, 0, 4}));
  EXPECT_TRUE(empty.at("q").data.empty());
  EXPECT_TRUE(parse(file_of("{}", ""), {}).empty());
  // A tensor that is not asked for may be anything; a name that is asked for twice is read once.
  const std::string other = R"({"other":{"dtype":"F8_E4M3","shape":[-1],"data_offsets":[7,3]},)"
                            R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_EQ(parse(file_of(other, "abcd"), {"q", "q"}).size(), 1u);
  EXPECT_EQ(text_of(parse(file_of(other, "abcd")).at("q").data), "abcd");
}

struct Malformed {
  std::string file, message;
  std::vector<std::string> names = {"q"};
};

std::vector<Malformed> malformed_files() {
  const std::string f32 = R"("F32")";
  const std::string good = file_of(q_header(f32, "[2]", "[0,8]"), "abcdefgh");
  const std::string not_outline = "JSON object of tensor descriptions";
  std::string endless = good, maximal = good;
  endless.replace(0, 8, 8, '\xff');
  const uint64_t over_limit = 100'000'001;
  std::memcpy(maximal.data(), &over_limit, 8);
  std::string header_too_long = good;
  header_too_long[0] = static_cast<char>(good.size() - 7);  // one byte more than the file has
  return {
      {"", "0 bytes"},
      {good.substr(0, 7), "7 bytes"},
      {endless, "header of 18446744073709551615 bytes"},
      {maximal, "header of 100000001 bytes"},
      {header_too_long, "truncated"},
      {good.substr(0, 20), "truncated"},
      {good.substr(0, good.size() - 1), "[0, 8]"},
      {file_of("", ""), "JSON"},
      {file_of(R"({"q":)", ""), "byte 6"},
      {file_of("{} {}", ""), "JSON"},
      {file_of("{\"\xff\":1}", ""), "JSON"},
      {file_of(R"({"x":{"y":1e999}})", ""), "out of range"},
      {file_of("[1]", ""), not_outline},
      {file_of("7", ""), not_outline},
      {file_of(std::string(1 << 20, '['), ""), not_outline},
      {file_of(R"({"a":{"b":{"c":1}}})", ""), not_outline},
      {file_of(q_header(f32, "[[2]]", "[0,8]"), "abcdefgh"), not_outline},
      {file_of(R"({"q":1,"q":2})", ""), "names tensor \"q\" twice"},
      {good, "no tensor \"k\"", {"q", "k"}},
      {file_of(R"({"__metadata__":{"a":"b"}})", ""), "the file has 0"},
      {file_of(R"({"q":5})", ""), "JSON object"},
      {file_of(R"({"q":{"shape":[2],"data_offsets":[0,8]}})", "abcdefgh"), "dtype null"},
      {file_of(q_header("32", "[2]", "[0,8]"), "abcdefgh"), "dtype 32"},
      {file_of(q_header(R"("F64")", "[1]", "[0,8]"), "abcdefgh"), "dtype \"F64\""},
      {file_of(q_header(R"("f32")", "[2]", "[0,8]"), "abcdefgh"), "dtype \"f32\""},
      {file_of(R"({"q":{"dtype":"F32","data_offsets":[0,8]}})", "abcdefgh"), "no shape"},
      {file_of(q_header(f32, "2", "[0,8]"), "abcdefgh"), "no shape"},
      {file_of(q_header(f32, "[-1,-2]", "[0,8]"), "abcdefgh"), "integers"},
      {file_of(q_header(f32, "[2.0]", "[0,8]"), "abcdefgh"), "integers"},
      {file_of(q_header(f32, R"(["2"])", "[0,8]"), "abcdefgh"), "integers"},
      {file_of(q_header(f32, "[9223372036854775808]", "[0,0]"), ""), "integers"},
      {file_of(q_header(f32, "[18446744073709551616]", "[0,0]"), ""), "integers"},
      // 2^62 * 4 bytes, and 2^32 * 2^32 * 4: both are 0 modulo 2^64.
      {file_of(q_header(f32, "[4611686018427387904]", "[0,0]"), ""), "0 bytes"},
      {file_of(q_header(f32, "[4294967296,4294967296]", "[0,0]"), ""), "0 bytes"},
      {file_of(q_header(f32, "[3]", "[0,8]"), "abcdefgh"), "shape [3]"},
      {file_of(q_header(f32, "[1]", "[0,8]"), "abcdefgh"), "shape [1]"},
      {file_of(q_header(R"("F16")", "[2]", "[0,8]"), "abcdefgh"), "dtype F16"},
      {file_of(R"({"q":{"dtype":"F32","shape":[2]}})", "abcdefgh"), "no data_offsets"},
      {file_of(q_header(f32, "[2]", "[8]"), "abcdefgh"), "no data_offsets"},
      {file_of(q_header(f32, "[2]", "[0,8,8]"), "abcdefgh"), "no data_offsets"},
      {file_of(q_header(f32, "[2]", "[-8,0]"), "abcdefgh"), "no data_offsets"},
      {file_of(q_header(f32, "[2]", "[8,0]"), "abcdefgh"), "data_offsets [8, 0]"},
      {file_of(q_header(f32, "[2]", "[4,12]"), "abcdefgh"), "data_offsets [4, 12]"},
      {file_of(q_header(f32, "[0]", "[9,9]"), "abcdefgh"), "data_offsets [9, 9]"},
      {file_of(R"({"k":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},)"
               R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
               "abcdef"),
       "tensors \"k\" and \"q\" overlap",
       {"q", "k"}},
  };
}

TEST(SafetensorsTest, MalformedFilesAreRefusedInOneLineThatNamesTheFileAndTheFault) {
  for (const Malformed& bad : malformed_files()) {
    const std::string message = error_of(bad.file, bad.names);
    test::expect_words(message, {"some.safetensors: ", bad.message});
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(SafetensorsTest, TheErrorOfAMissingNameListsSomeNamesOfTheFile) {
  std::string header = "{";
  for (int i = 10; i < 30; ++i) header += (i > 10 ? ",\"t" : "\"t") + std::to_string(i) + "\":{}";
  const std::string message = error_of(file_of(header + "}", ""));
  test::expect_words(message, {"20", R"("t10", "t11")", R"("t17", ...)"});
  EXPECT_EQ(message.find("t18"), std::string::npos) << message;
}

// Takes minutes if the parser compares each name with all earlier names.
TEST(SafetensorsTest, LargeHeadersAreRead) {
  std::string header = "{";
  for (int i = 0; i < 300'000; ++i) header += fmt::format(R"("{}":{{}},)", i);
  header += R"("q":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})";
  EXPECT_EQ(text_of(parse(file_of(header, "ab")).at("q").data), "ab");
  std::string list = "[";
  for (int i = 0; i < 1'000'000; ++i) list += "{},";
  EXPECT_THROW(parse(file_of(list + "{}]", "")), BadInput);
}

TEST_F(SafetensorsFile, WriterMakesTheBytesOfTheFormat) {
  put("x", "an older file");
  write_safetensors(path("x"),
                    {{"q", {DType::f16, {1, 3}, bytes_of("abcdef")}}, {"k", {DType::f32, {}, bytes_of("wxyz")}}});
  const std::string file = contents("x");
  // The format allows several spellings of the JSON; the writer sorts the keys.
  uint64_t header_bytes = 0;
  ASSERT_GE(file.size(), 8u);
  std::memcpy(&header_bytes, file.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  ASSERT_EQ(file.size(), 8 + header_bytes + 10);
  EXPECT_EQ(file.substr(8 + header_bytes), "wxyzabcdef");
  std::string header = file.substr(8, header_bytes);
  EXPECT_EQ(header[0], '{');
  header.erase(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"k":{"data_offsets":[0,4],"dtype":"F32","shape":[]},)"
                    R"("q":{"data_offsets":[4,10],"dtype":"F16","shape":[1,3]}})");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 1) << "a temporary file is left";
}

TEST_F(SafetensorsFile, EveryDtypeRoundTrips) {
  std::map<std::string, StoredTensor> tensors;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor tensor = random_tensor(2, 3, 4, 5, dtype, Layout::bhsd, 1, 0);
    tensors[std::string(name(dtype))] = {dtype, {2, 3, 4, 5}, tensor.data};
  }
  tensors["a \"quoted\" \n name"] = {DType::f32, {0}, {}};
  write_safetensors(path("x"), tensors);
  for (const auto& [name, tensor] : tensors) {  // one at a time: each tensor is found by its own offsets
    const auto read = read_safetensors(path("x"), {name});
    ASSERT_EQ(read.size(), 1u);
    EXPECT_EQ(read.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(read.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(read.at(name).data, tensor.data) << name;
  }
}

TEST_F(SafetensorsFile, AFailedWriteSaysWhichFileAndLeavesNothing) {
  for (const std::string& target : {path("missing/x"), folder().string()}) {
    test::expect_error<BadInput>([&] { write_safetensors(target, {}); }, {target});
  }
  EXPECT_TRUE(fs::is_empty(folder()));
  EXPECT_FALSE(fs::exists(folder().string() + "." + std::to_string(getpid()) + ".tmp"));
  const std::string pipe = path("pipe");  // stands for a device such as /dev/full, which no file may replace
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(write_safetensors(pipe, {}), BadInput);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(SafetensorsFile, WritesOnlyWhatFitsItsShape) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {}, {-1, -2}, {int64_t{1} << 62}}) {
    EXPECT_THROW(write_safetensors(path("x"), {{"q", {DType::f16, shape, bytes_of("abcd")}}}), std::invalid_argument);
  }
  EXPECT_TRUE(fs::is_empty(folder()));
}

TEST_F(SafetensorsFile, AFileThatCannotBeReadIsNamed) {
  fs::create_directory(path("folder"));
  put("cut", file_of(q_header(R"("F32")", "[1]", "[0,4]"), "abc"));
  for (const auto& [file, word] : {std::pair{"none", "no such file"}, {"folder", "regular file"}, {"cut", "[0, 4]"}}) {
    test::expect_error<BadInput>([&, &name = file] { read_safetensors(path(name), {"q"}); }, {path(file), word});
  }
}

TEST_F(SafetensorsFile, ReadsOnlyWhatIsAskedFor) {
  const std::string header = R"({"big":{"dtype":"F32","shape":[17179869184],"data_offsets":[4,68719476740]},)"
                             R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  put("x", file_of(header, "abcd"));
  fs::resize_file(path("x"), fs::file_size(path("x")) + (uint64_t{1} << 36));  // sparse
  EXPECT_EQ(text_of(read_safetensors(path("x"), {"q"}).at("q").data), "abcd");
}

// The corpus has files that the fuzzer kept (fuzz/safetensors_fuzz.cpp), and files made by hand.
TEST(SafetensorsTest, CorpusParsesOrIsRefused) {
  int parsed = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(ATTN_TEST_DATA) / "fuzz" / "corpus")) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string file(std::istreambuf_iterator<char>(in), {});
    SCOPED_TRACE(entry.path().filename());
    try {
      const auto tensors = parse(file, {"q", "k", "v"});
      EXPECT_EQ(tensors.size(), 3u);
      ++parsed;
    } catch (const BadInput& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(parsed, 0);
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace attn
