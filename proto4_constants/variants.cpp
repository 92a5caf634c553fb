#include "proto4_constants/variants.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>

#include "common/experiment/sweep_span.h"

namespace attn {
namespace {

constexpr const char* hook_path = "proto4_constants/kernels/alibi.h";

struct TileGrid {
  std::vector<int64_t> head_dims, blocks_r, blocks_c;
};

struct Grids {
  TileGrid base, finer;
};

Grids grids_of(const std::string& kernel, const DeviceInfo& device) {
  const std::vector<int64_t> dims = {64, 128, 256}, finer_dims = {64, 80, 96, 112, 128, 160, 192, 224, 256};
  if (kernel == "naive") return {{dims, {0}, {0}}, {finer_dims, {0}, {0}}};
  if (sweep_span(device).large()) {
    return {{dims, {64, 128}, {32, 64, 80}}, {finer_dims, {64, 128}, {16, 32, 48, 64, 80, 96, 112, 128}}};
  }
  return {{dims, {32, 64, 128}, {64, 128}}, {finer_dims, {32, 64, 128}, {64, 80, 96, 112, 128}}};
}

bool runs(const Variant& variant, const DeviceInfo& device) { return !skip_reason(variant.plan(device), device); }

// Returns the variants of a grid that run on the device. The order steps through the grid by about 0.618 (the golden
// section) of the grid's size, modulo the size. So the first few variants are spread over the grid.
std::vector<Variant> spread(const TileGrid& grid, const std::string& kernel, DType dtype, const DeviceInfo& device) {
  std::vector<Variant> all;
  for (const int64_t head_dim : grid.head_dims) {
    for (const int64_t block_r : grid.blocks_r) {
      for (const int64_t block_c : grid.blocks_c) {
        for (const bool causal : {false, true}) {
          for (const bool alibi : {false, true}) {
            Variant variant;
            variant.config.variant = kernel;
            variant.config.shape = small_shape(head_dim, causal);
            variant.config.dtype = variant.config.out_dtype = dtype;
            variant.config.block_r = block_r;
            variant.config.block_c = block_c;
            variant.alibi = alibi;
            if (runs(variant, device)) all.push_back(variant);
          }
        }
      }
    }
  }
  if (all.empty()) return all;
  size_t step = std::max<size_t>(1, static_cast<size_t>(std::lround(0.618 * static_cast<double>(all.size()))));
  while (std::gcd(step, all.size()) != 1) ++step;
  std::vector<Variant> ordered;
  for (size_t i = 0; i < all.size(); ++i) ordered.push_back(all[i * step % all.size()]);
  return ordered;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace

AttentionHooks Variant::hook() const {
  static const std::string text = read_source({}, hook_path);
  AttentionHooks hook;
  hook.text = text;
  hook.constants = {{"ALIBI", alibi}};
  hook.change = alibi ? ScoreChange::any : ScoreChange::none;
  hook.name = alibi ? "alibi" : "no alibi";
  const int64_t heads = config.shape.q_heads;
  std::vector<float> slopes;  // as in the paper on ALiBi: 2^(-8 (h + 1) / heads)
  for (int64_t head = 0; head < heads; ++head) {
    slopes.push_back(static_cast<float>(std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(heads))));
  }
  const auto bytes = std::as_bytes(std::span(slopes));
  hook.data = {bytes.begin(), bytes.end()};
  hook.reference = each_score([on = alibi, slopes](double s, int64_t, int64_t head, int64_t q, int64_t k) {
    return on ? s - static_cast<double>(slopes[static_cast<size_t>(head)]) * static_cast<double>(std::abs(q - k)) : s;
  });
  return hook;
}

Plan Variant::plan(const DeviceInfo& device) const {
  const AttentionHooks alibi_hook = hook();
  return attention_plan(config, device, &alibi_hook);
}

KernelSource Variant::source(const DeviceInfo& device) const {
  const AttentionHooks alibi_hook = hook();
  return attention_launch(config, device, &alibi_hook).source;
}

AttentionShape small_shape(int64_t head_dim, bool causal) {
  return {.batch = 1, .q_heads = 3, .kv_heads = 1, .q_len = 37, .kv_len = 83, .head_dim = head_dim, .causal = causal};
}

std::vector<Variant> variant_grid(const std::string& kernel, DType dtype, const DeviceInfo& device) {
  const auto [base, finer] = grids_of(kernel, device);
  std::vector<Variant> all = spread(base, kernel, dtype, device);
  const size_t base_count = all.size();
  for (Variant& variant : spread(finer, kernel, dtype, device)) {
    const bool in_base =
        std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(base_count), [&](const Variant& other) {
          return other.alibi == variant.alibi && other.config.shape == variant.config.shape &&
                 other.config.block_r == variant.config.block_r && other.config.block_c == variant.config.block_c;
        });
    if (!in_base) all.push_back(std::move(variant));
  }
  return all;
}

std::vector<std::string> run_time_axes(const std::string& kernel, const DeviceInfo& device) {
  if (kernel == "naive") return {"head_dim", "causal", "alibi"};
  if (device.on_host && kernel != "tuned") return {"head_dim", "block_r", "block_c", "causal", "alibi"};
  // To read a constant at run time, a kernel must have `if` in place of `if constexpr`. In the wgmma kernel this
  // replacement alone changes the machine code. So the wgmma kernel reads no constant at run time.
  const bool only_causal = kernel == "mma_sync" || device.on_host;
  return only_causal ? std::vector<std::string>{"causal"} : std::vector<std::string>{};
}

std::set<std::string> run_time_constants(const std::string& value, const std::string& kernel,
                                         const DeviceInfo& device) {
  if (value == "none") return {};
  if (value != "all") return {upper(value)};
  std::set<std::string> names;
  for (const std::string& axis : run_time_axes(kernel, device)) names.insert(upper(axis));
  return names;
}

}  // namespace attn
