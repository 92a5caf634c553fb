#include "common/attention/given_mask.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/attention/mask_lists.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"

namespace attn {
namespace {

constexpr const char* folder = "common/attention/kernels/";

}  // namespace

Launch mask_bits_launch(const Launch& attention, const DeviceInfo& device) {
  KernelSource hooked = attention.source;
  // The kernel sets the bit of a pair if the caller's mask and the rules of this hook let the pair take part.
  hooked.includes[std::string(folder) + "mask.h"] = "#include \"common/attention/kernels/modifiers/mask.h\"\n";
  hooked.includes.erase(std::string(folder) + "seen_pairs.h");
  return {
      .source = with_hooks_of(hooked, device.operations->kernel_file(std::string(folder) + "mask_bits"), "mask_bits"),
      .threads = device.operations->mask_bits->threads,
      .phase = "mask_bits"};
}

GivenMask::GivenMask(Device& device, PipelineCache& pipelines, const FlashConfig& config, const Plan& plan,
                     const MaskView& mask, bool for_each_sequence) {
  const Launch& attention = planned_launch(plan, "attention", device.info());
  if (!device.info().operations->mask_bits) throw BadInput(no_kernel_for("a mask"));
  const ElementKernel& operation = *device.info().operations->mask_bits;
  FlashConfig planned = config;
  planned.block_r = attention.source.constants.at("BLOCK_R");
  planned.block_c = attention.source.constants.at("BLOCK_C");
  const AttentionShape& shape = config.shape;
  const int64_t first_query = FlashOperation::of(device.info()).first_query(planned, device.info());
  const int64_t tiles = divided_up(shape.q_len - first_query, planned.block_r);
  const int64_t blocks = divided_up(shape.kv_len, planned.block_c);
  const int64_t heads = mask.has(1) ? shape.q_heads : 1;
  const int64_t batches = mask.has(0) || for_each_sequence ? shape.batch : 1;
  const int64_t words = shape.q_len * blocks * 4, groups = operation.elements > 0 ? tiles * blocks : tiles;
  launch_ = mask_bits_launch(attention, device.info());
  launch_.grid = {static_cast<uint32_t>(groups), static_cast<uint32_t>(heads), static_cast<uint32_t>(batches)};
  kernel_ = pipelines.get(launch_.source).kernel.get();
  const auto count = static_cast<size_t>(tiles * heads * batches);
  counts_ = Buffer(device, count * sizeof(int));
  entries_ = Buffer(device, count * static_cast<size_t>(blocks) * sizeof(int));
  words_ = Buffer(device, static_cast<size_t>(words * heads * batches * mask_word_bytes(planned.block_c)));
  finished_ = uploaded(device, std::vector<unsigned>(count));
  filled_.q_heads = static_cast<int>(shape.q_heads);
  filled_.q_len = static_cast<int>(shape.q_len);
  filled_.kv_len = static_cast<int>(shape.kv_len);
  filled_.lists = {.counts = static_cast<int*>(counts_.data()),
                   .entries = static_cast<int*>(entries_.data()),
                   .capacity = static_cast<int>(blocks),
                   .rows = static_cast<int>(planned.block_r),
                   .first_query = static_cast<int>(first_query),
                   .of_batch = static_cast<int>(batches > 1 ? heads * tiles : 0),
                   .of_head = static_cast<int>(heads > 1 ? tiles : 0)};
  filled_.bits = {
      .words = words_.data(), .of_batch = batches > 1 ? heads * words : 0, .of_head = heads > 1 ? words : 0};
  filled_.finished = static_cast<unsigned*>(finished_.data());
}

void GivenMask::encode(CommandEncoder& encoder, const MaskView& mask, const void* data) const {
  MaskBitsParams params = filled_;
  params.data = data;
  params.mask = mask.data;
  int64_t places = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mask.data));
  for (int axis = 0; axis < 4; ++axis) {
    params.strides[axis] = mask.has(axis) ? mask.strides[axis] : 0;
    if (axis < 3) places |= params.strides[axis];
  }
  params.in_eights = params.strides[3] == 1 && places % 8 == 0;
  encoder.dispatch(*kernel_, launch_.grid, launch_.threads, 0, params);
}

}  // namespace attn
