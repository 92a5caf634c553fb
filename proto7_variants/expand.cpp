#include "proto7_variants/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/error.h"
#include "common/cases/compare_rows.h"
#include "proto7_variants/kernels/expand.h"

namespace attn {
namespace {

constexpr int64_t vector_bytes = 16;  // the bytes of a load or a store on a GPU

int64_t expand_row_bytes(const ExpandShape& shape) {
  return shape.head_dim * static_cast<int64_t>(size_bytes(shape.dtype));
}

/// Returns the number of rows that a threadgroup copies. On the cpu the rows take at most 16 KiB, so that they stay in
/// the L1 cache until every query head of the group has its copy.
int64_t expand_tile_rows(const ExpandShape& shape, const DeviceInfo& device) {
  if (!device.on_host) {
    const int64_t most = expand_threads / (expand_row_bytes(shape) / vector_bytes);
    return expand_rows * std::clamp<int64_t>((shape.rows + expand_rows - 1) / expand_rows, 1, most);
  }
  constexpr int64_t bytes = 16 << 10;
  return std::clamp<int64_t>(bytes / expand_row_bytes(shape), 1, shape.rows);
}

void expand_check(const ExpandShape& shape) {
  const auto check = [](int64_t value, const char* what, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    throw BadInput(fmt::format("expand: {}={}: it must be from {} to {}", what, value, least, most));
  };
  check(shape.batch, "batch", 1, 65535);
  check(shape.kv_heads, "kv_heads", 1, 65535 / 2);
  check(shape.group, "group", 1, 65535);
  check(shape.rows, "rows", 1, int64_t{1} << 30);
  check(shape.head_dim, "head_dim", 8, 512);
  if (shape.head_dim % 8 != 0)
    throw BadInput(fmt::format("expand: head_dim={}: it must be a multiple of 8", shape.head_dim));
}

Launch expand_launch(const ExpandShape& shape, const DeviceInfo& device) {
  expand_check(shape);
  const int64_t row_bytes = expand_row_bytes(shape), tile_rows = expand_tile_rows(shape, device);
  Launch launch;
  launch.phase = "expand";
  launch.source.path = device.operations->kernel_file("proto7_variants/kernels/expand");
  launch.source.entry = "expand_heads";
  launch.source.constants = {{"ROW_BYTES", row_bytes}};
  launch.grid = {static_cast<uint32_t>((shape.rows + tile_rows - 1) / tile_rows),
                 static_cast<uint32_t>(2 * shape.kv_heads), static_cast<uint32_t>(shape.batch)};
  if (!device.on_host) {
    launch.threads = static_cast<uint32_t>(tile_rows / expand_rows * (row_bytes / vector_bytes));
  } else {
    launch.source.constants["VECTOR_BYTES"] = std::gcd<int64_t>(row_bytes, device.simd_width * sizeof(float));
  }
  return launch;
}

}  // namespace

Tensor expanded(const Tensor& tensor, int64_t group) {
  Tensor result =
      Tensor::zeros(tensor.batch, tensor.heads * group, tensor.seq, tensor.dim, tensor.dtype, tensor.layout);
  const auto element = static_cast<int64_t>(size_bytes(tensor.dtype));
  for (int64_t b = 0; b < result.batch; ++b) {
    for (int64_t h = 0; h < result.heads; ++h) {
      for (int64_t s = 0; s < result.seq; ++s) {
        std::memcpy(result.data.data() + result.offset(b, h, s, 0) * element,
                    tensor.data.data() + tensor.offset(b, h / group, s, 0) * element,
                    static_cast<size_t>(tensor.dim * element));
      }
    }
  }
  return result;
}

Plan expand_plan(const ExpandShape& shape, const DeviceInfo& device) {
  Plan plan{.launches = {expand_launch(shape, device)}};
  const auto in_bytes = static_cast<double>(2 * shape.batch * shape.kv_heads * shape.rows * expand_row_bytes(shape));
  plan.work = {.bytes = in_bytes * static_cast<double>(1 + shape.group), .bound = Bound::memory, .dtype = shape.dtype};
  return plan;
}

ExpandLaunch::ExpandLaunch(Device& device, PipelineCache& pipelines, const ExpandShape& shape, const Plan& plan)
    : shape_(shape),
      launch_(planned_launch(plan, "expand", device.info())),
      kernel_(pipelines.get(launch_.source).kernel.get()),
      tile_rows_(expand_tile_rows(shape, device.info())) {}

void ExpandLaunch::encode(CommandEncoder& encoder, const ExpandTensors& tensors) const {
  const auto bytes = [&](const Strides& strides) -> ExpandStrides {
    const auto element = static_cast<int64_t>(size_bytes(shape_.dtype));
    return {strides.batch * element, strides.head * element, strides.row * element};
  };
  const ExpandStrides in = bytes(tensors.in_strides), out = bytes(tensors.out_strides);
  const ExpandParams params{.tensors = {{tensors.k, tensors.k_out, in, out}, {tensors.v, tensors.v_out, in, out}},
                            .kv_heads = static_cast<int>(shape_.kv_heads),
                            .group = static_cast<int>(shape_.group),
                            .rows = static_cast<int>(shape_.rows),
                            .tile_rows = static_cast<int>(tile_rows_)};
  encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes, params);
}

HeadCopies::HeadCopies(Device& device, PipelineCache& pipelines, const Tensor& in, int64_t group, Buffer& k, Buffer& v,
                       Buffer& k_out, Buffer& v_out, const Plan& plan)
    : in_{in.batch, in.heads, in.seq, in.dim, in.dtype, in.layout, {}},
      out_strides_(Tensor{in.batch, in.heads * group, in.seq, in.dim, in.dtype, in.layout, {}}.strides()),
      group_(group),
      sources_{&k, &v},
      targets_{&k_out, &v_out},
      launch_(device, pipelines,
              {.batch = in.batch,
               .kv_heads = in.heads,
               .group = group,
               .rows = in.seq,
               .head_dim = in.dim,
               .dtype = in.dtype},
              plan) {}

void HeadCopies::encode(CommandEncoder& encoder) const {
  launch_.encode(encoder, {.k = sources_[0]->data(),
                           .v = sources_[1]->data(),
                           .k_out = targets_[0]->data(),
                           .v_out = targets_[1]->data(),
                           .in_strides = in_.strides(),
                           .out_strides = out_strides_});
}

void HeadCopies::poison() {
  for (Buffer* target : targets_) target->poison();
}

Check HeadCopies::check() const {
  Check check;
  for (const int i : {0, 1}) {
    Tensor source = Tensor::zeros(in_.batch, in_.heads, in_.seq, in_.dim, in_.dtype, in_.layout);
    sources_[i]->download(source.data.data(), source.bytes());
    const Tensor want = expanded(source, group_);
    std::vector<std::byte> got(want.bytes());
    targets_[i]->download(got.data(), got.size());
    if (const auto [at, other] = std::ranges::mismatch(got, want.data); at != got.end()) {
      check.fail(fmt::format("the copy of {} is wrong from byte {} on", i == 0 ? "K" : "V", at - got.begin()));
    }
    check_guards(check, {targets_[i]});
    check.rows_checked += want.batch * want.heads * want.seq;
  }
  return check;
}

}  // namespace attn
