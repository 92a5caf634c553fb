// Compares copies of key/value heads by the device under test bit for bit with copies by the host.
#include "proto7_variants/expand.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/testing/devices.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::device;
using test::MutatedSources;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;

/// Copies the heads of random K and V on the device. Returns what is wrong with the copies, or an empty text.
std::string expand_difference(const ExpandShape& shape, Layout layout, Layout out_layout,
                              PipelineCache& cache = pipelines()) {
  struct Side {
    Tensor in, want;
    Buffer in_buffer, out_buffer;
  };
  std::vector<Side> sides(2);
  for (uint64_t i = 0; i < 2; ++i) {
    Side& side = sides[i];
    side.in = random_tensor(shape.batch, shape.kv_heads, shape.rows, shape.head_dim, shape.dtype, layout, 7, i);
    side.want = convert(expanded(side.in, shape.group), shape.dtype, out_layout);
    side.in_buffer = Buffer(device(), side.in.bytes());
    side.in_buffer.upload(side.in.data.data(), side.in.bytes());
    side.out_buffer = Buffer(device(), side.want.bytes());
  }
  const ExpandLaunch launch(device(), cache, shape, expand_plan(shape, device().info()));
  CommandEncoder encoder;
  launch.encode(encoder, {.k = sides[0].in_buffer.data(),
                          .v = sides[1].in_buffer.data(),
                          .k_out = sides[0].out_buffer.data(),
                          .v_out = sides[1].out_buffer.data(),
                          .in_strides = sides[0].in.strides(),
                          .out_strides = sides[0].want.strides()});
  device().submit(encoder);
  for (Side& side : sides) {
    std::vector<std::byte> got(side.want.bytes());
    side.out_buffer.download(got.data(), got.size());
    const char* const what = &side == sides.data() ? "K" : "V";
    if (got != side.want.data) return fmt::format("the copy of {} is wrong", what);
    if (!side.out_buffer.guards_intact() || !side.in_buffer.guards_intact()) return "a guard band was overwritten";
  }
  return {};
}

class ExpandTest : public OnDevice<testing::Test> {};

TEST_F(ExpandTest, TheReferenceRepeatsHeads) {
  const Tensor in = random_tensor(2, 3, 5, 8, DType::f32, Layout::bshd, 7, 0);
  const Tensor out = expanded(in, 4);
  ASSERT_EQ(out.heads, 12);
  for (int64_t h = 0; h < 12; ++h) EXPECT_EQ(out.at(1, h, 4, 7), in.at(1, h / 4, 4, 7)) << h;
}

TEST_F(ExpandTest, CopiesAreExact) {
  const auto expect_exact = [](const ExpandShape& shape, Layout layout, Layout out_layout) {
    EXPECT_EQ(expand_difference(shape, layout, out_layout), "")
        << "kv_heads " << shape.kv_heads << ", group " << shape.group << ", head_dim " << shape.head_dim << ", rows "
        << shape.rows << ", " << name(shape.dtype) << ", " << name(layout) << " to " << name(out_layout);
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [kv_heads, group] : {std::pair{3, 1}, {3, 2}, {2, 3}, {2, 4}, {2, 7}, {1, 8}, {1, 24}}) {
      for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
        for (const Layout out_layout : {Layout::bhsd, Layout::bshd}) {
          expect_exact({.batch = 2, .kv_heads = kv_heads, .group = group, .rows = 37, .head_dim = 40, .dtype = dtype},
                       layout, out_layout);
        }
      }
    }
    for (const int64_t head_dim : {8, 24, 64, 72, 128, 256, 512}) {
      for (const int64_t rows : {1, 3, 63, 130, 515}) {
        expect_exact({.batch = 3, .kv_heads = 2, .group = 3, .rows = rows, .head_dim = head_dim, .dtype = dtype},
                     Layout::bhsd, Layout::bhsd);
      }
    }
  }
}

TEST_F(ExpandTest, AWrongHeadOrRowIsCaught) {
  struct Mutation {
    const char *what, *from, *to;
  };
  const std::vector<Mutation> on_cpu = {
      {"another key/value head", "head * from.head", "(head + 1) % p.kv_heads * from.head"},
      {"V left out", "index < p.kv_heads ? 0 : 1", "0"},
      {"copies begin at the wrong query head", "head * p.group * to.head", "head * to.head"},
      {"the tile's first row in place of each row", "in + row * from.row", "in"},
      {"another batch", "batch * from.batch", "0 * from.batch"}};
  const std::vector<Mutation> of_cuda = {
      {"another key/value head", "t.in_strides, head, first_row", "t.in_strides, (head + 1) % p.kv_heads, first_row"},
      {"V left out", "index < p.kv_heads ? 0 : 1", "0"},
      {"copies begin at the wrong query head", "head * p.group, first_row", "head, first_row"},
      {"a thread's first row in place of each of its rows", "in + i * in_step", "in"},
      {"another batch", "blockIdx.z * strides.batch", "0 * strides.batch"}};
  const ExpandShape shape{.batch = 2, .kv_heads = 3, .group = 4, .rows = 100, .head_dim = 64, .dtype = DType::bf16};
  for (const Mutation& mutation : on_cuda ? of_cuda : on_cpu) {
    const MutatedSources mutated(
        on_cuda ? "proto7_variants/kernels/expand.cuda.cu" : "proto7_variants/kernels/expand.cpu.cpp", mutation.from,
        mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_NE(expand_difference(shape, Layout::bhsd, Layout::bhsd, cache), "") << mutation.what;
  }
}

TEST(ExpandPlan, CountsEachInputByteOnceAndEachOutputByteOnce) {
  const ExpandShape shape{.batch = 2, .kv_heads = 3, .group = 4, .rows = 10, .head_dim = 64, .dtype = DType::bf16};
  for (const DeviceInfo& info : {test::avx2(), test::hopper()}) {
    const Plan plan = expand_plan(shape, info);
    EXPECT_EQ(plan.work.bytes, 2. * 2 * 3 * 10 * 64 * 2 * (1 + 4));
    EXPECT_EQ(plan.work.bound, Bound::memory);
    ASSERT_EQ(plan.launches.size(), 1u);
    EXPECT_EQ(plan.launches.front().phase, "expand");
  }
  EXPECT_LE(expand_plan(shape, test::hopper()).launches.front().threads, 256u);
  for (const auto& change : {ExpandShape{.head_dim = 12}, {.head_dim = 520}, {.rows = 0}, {.group = 0}}) {
    EXPECT_THROW((void)expand_plan(change, test::hopper()), BadInput);
  }
}

}  // namespace
}  // namespace attn
