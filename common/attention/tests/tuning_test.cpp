// Files of tuning, and the choice of a tile that follows from them. The tests run no kernel.
#include "common/attention/tuning.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/temporary_folder.h"
#include "common/testing/captured_log.h"
#include "common/testing/devices.h"
#include "common/testing/messages.h"

namespace attn {
namespace {

using Tile = std::pair<int64_t, int64_t>;

/// A device, the kernel that it takes for `dtype`, and tiles that this kernel has and that the rules do not choose.
struct Tuned {
  DeviceInfo info;
  std::string kernel, dtype;
  Tile first, second;
};

std::vector<Tuned> devices() {
  DeviceInfo cpu = test::avx2(), amx = test::avx2(), metal = test::metal();
  cpu.arch = "made_up";
  metal.arch = "made_up_metal";
  amx.arch = "made_up_amx";
  amx.features = {"amx-bf16", "avx512bf16"};
  return {{cpu, "tuned", "f32", {32, 80}, {48, 96}},
          {amx, "amx", "bf16", {32, 80}, {48, 96}},
          {metal, "tuned", "f32", {16, 16}, {32, 16}},
          {test::hopper(), "wgmma", "bf16", {64, 96}, {128, 80}},
          {test::ampere(), "mma_sync", "f16", {64, 96}, {128, 80}}};
}

class TuningTest : public testing::Test {
 protected:
  ~TuningTest() override { unsetenv("ATTENTION_PROTO_SOURCE"); }

  /// Makes a source tree whose only file is the file of tuning of the device; without a text, a tree without files.
  void write(const DeviceInfo& info, const std::string& text) {
    const std::filesystem::path tree = folder_.path() / std::to_string(trees_++);
    std::filesystem::create_directories(tree / "findings/tuning");
    if (!text.empty()) std::ofstream(tree / tuning_path(info)) << text;
    setenv("ATTENTION_PROTO_SOURCE", tree.c_str(), 1);
  }
  static Tile chosen(const Tuned& on, int64_t head_dim = 64) {
    FlashConfig config{
        .variant = "tuned",
        .shape = {.batch = 4, .q_heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096, .head_dim = head_dim},
        .dtype = parse_dtype(on.dtype)};
    choose_tile(config, on.info);
    return {config.block_r, config.block_c};
  }
  static Json tile(const Tile& size, const Json& cost) {
    return {{"block_r", size.first}, {"block_c", size.second}, {"cost", cost}};
  }
  static Json file(const Tuned& on, const Json& tiles) {
    return {{"tiles", {{{"kernel", on.kernel}, {"dtypes", {on.dtype}}, {"head_dim", 64}, {"tiles", tiles}}}}};
  }

 private:
  TemporaryFolder folder_;
  int trees_ = 0;
};

TEST_F(TuningTest, TheLibraryTakesTheTilesOfTheFile) {
  const test::CapturedLog log;
  for (const Tuned& on : devices()) {
    write(on.info, "");
    const Tile rules = chosen(on), wider = chosen(on, 128);
    const auto with = [&](const Json& tiles) {
      write(on.info, file(on, tiles).dump());
      return chosen(on);
    };
    EXPECT_NE(rules, on.first);
    EXPECT_NE(rules, on.second);
    EXPECT_EQ(with(Json::array({tile(on.first, 1)})), on.first) << on.kernel;
    EXPECT_EQ(with(Json::array({tile(on.second, 1)})), on.second) << on.kernel;
    EXPECT_EQ(with(Json::array({tile(on.first, 1), tile(on.second, 1000)})), on.first) << on.kernel;
    if (on.info.backend != "metal") {
      EXPECT_EQ(with(Json::array({tile(on.first, 1000), tile(on.second, 1)})), on.second) << on.kernel;
    }
    EXPECT_EQ(chosen(on, 128), wider) << "the file has a row for head_dim up to 64 only";
  }
  EXPECT_EQ(log.text(), "");
}

TEST_F(TuningTest, ADamagedFileIsOneLineOfTheLogAndTheRulesCount) {
  for (const Tuned& on : devices()) {
    write(on.info, "");
    const Tile rules = chosen(on);
    const Json sound = file(on, Json::array({tile(on.first, 1)}));
    std::vector<std::pair<std::string, std::string>> damaged = {
        {"{", "JSON"},
        {"[]", "JSON"},
        {R"({"tiles":)" + std::string(300'000, '['), "JSON"},
        {R"({"tiles":)" + std::string(100, '[') + std::string(100, ']') + "}", "JSON"},
        {"\xff", "JSON"},
        {R"({"tiles":5})", "tiles: 5"},
        {R"({"generated":{"search":{"x":{}}}})", "generated: search: x: {}"}};
    for (const auto& [place, value, words] : {std::tuple<const char*, Json, const char*>{"/kernel", 1, "kernel: 1"},
                                              {"/dtypes", "f32", "dtypes: \"f32\""},
                                              {"/head_dim", 0, "head_dim: 0"},
                                              {"/tiles/0", Json::object(), "block_r"},
                                              {"/tiles/0/block_r", "16", "block_r: \"16\""},
                                              {"/tiles/0/block_r", 40, "block_r: 40"},
                                              {"/tiles/0/block_r", -16, "block_r: -16"},
                                              {"/tiles/0/block_c", uint64_t{1} << 63, "block_c: 9223372036854775808"},
                                              {"/tiles/0/block_c", 1e300, "block_c: 1e+300"},
                                              {"/tiles/0/cost", 0, "cost: 0"},
                                              {"/tiles/0/cost", nullptr, "cost: null"},
                                              {"/tiles/0/hooked_cost", -1, "hooked_cost: -1"},
                                              {"/tiles/0/block_r", 80, "block_r=80"}}) {
      if (on.info.on_host && value == 80) continue;  // only kernels for a GPU do not take this tile
      Json other = sound;
      other[Json::json_pointer(std::string("/tiles/0") + place)] = value;
      damaged.emplace_back(other.dump(), words);
    }
    for (const auto& [text, words] : damaged) {
      const test::CapturedLog log;
      write(on.info, text);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(chosen(on), rules) << on.kernel << " " << text;
      EXPECT_EQ(log.lines(), 1) << on.kernel << " " << text << "\n" << log.text();
      test::expect_words(log.text(), {tuning_path(on.info), words});
    }
  }
}

TEST_F(TuningTest, AFileThatCannotBeReadIsOneLineOfTheLog) {
  const Tuned on = devices().front();
  write(on.info, "");
  std::filesystem::create_symlink("none",
                                  std::filesystem::path(getenv("ATTENTION_PROTO_SOURCE")) / tuning_path(on.info));
  const test::CapturedLog log;
  chosen(on);
  test::expect_words(log.text(), {tuning_path(on.info), "cannot be read"});
}

TEST_F(TuningTest, AllTilesOfTheSourceTreeAreTiledByTheirKernels) {
  const test::CapturedLog log;
  int rows = 0;
  for (const auto& path : std::filesystem::directory_iterator(ATTN_SOURCE_DIR "/findings/tuning")) {
    DeviceInfo info = test::hopper();
    info.arch = path.path().stem();
    for (const Json& row : read_tuning(info).value("tiles", Json::array())) {
      for (const std::string dtype : row["dtypes"]) {
        ++rows;
        FlashConfig config;
        config.dtype = parse_dtype(dtype);
        config.shape.head_dim = row["head_dim"];
        EXPECT_EQ(tuned_tiles(config, info, row["kernel"]).size(), row["tiles"].size()) << row;
      }
    }
  }
  EXPECT_GT(rows, 0);
  EXPECT_EQ(log.text(), "");
}

}  // namespace
}  // namespace attn
