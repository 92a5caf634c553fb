#include "common/attention/flash.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "common/attention/kernels/amx.h"
#include "common/attention/kernels/tiled.h"
#include "common/attention/kernels/tuned.h"
#include "common/attention/tuning.h"
#include "common/backends/cpu/operations.h"
#include "common/base/divided_up.h"
#include "common/kernel/types.h"

namespace attn {
namespace {

bool rotates(const AttentionHooks* hooks) { return hooks && hooks->rotation != Rotation::none; }

bool on_arm(const DeviceInfo& device) { return device.has("neon"); }

// Whether `config` runs the kernel for AMX: the variant `tuned` of bf16, on x86 cores that have tile registers, without
// a score hook and without a rotate hook.
bool uses_amx(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const bool here = device.has("amx-bf16") && device.has("avx512bf16");
  const bool hooked = hooks && (hooks->change != ScoreChange::none || rotates(hooks));
  return config.variant == "tuned" && config.dtype == DType::bf16 && here && !hooked;
}

// Whether the kernel uses dot products of bf16 pairs. The kernel uses dot products only on cores where these are faster
// than conversions to f32 and multiply-adds of f32. AMD's cores start two dot products a cycle, Intel's cores start one
// every two cycles (measured on one core of a sapphirerapids: 124 GFLOP/s with dot products, 249 GFLOP/s with f32
// multiply-adds).
bool uses_bf16_dot(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  return !rotates(hooks) && config.dtype == DType::bf16 && device.has("avx512bf16") && device.arch.starts_with("znver");
}

// The products of the variant `tuned` without AMX.
enum class Products {
  words,          // of f32; other types are converted
  bf16_pairs,     // dot products of pairs, on x86
  bf16_matrices,  // of 2 x 4 by 4 x 2 numbers, on AArch64
  f16             // of one number by four, added to f32, on AArch64
};
Products products_of(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  if (uses_bf16_dot(config, device, hooks)) return Products::bf16_pairs;
  if (!on_arm(device) || rotates(hooks)) return Products::words;
  if (config.dtype == DType::bf16 && device.has("bf16")) return Products::bf16_matrices;
  if (config.dtype == DType::f16 && device.has("fp16fml")) return Products::f16;
  return Products::words;
}

// Whether the device has Intel's cores with 512-bit vectors. On these cores all vector arithmetic shares two ports with
// multiply-adds. A core starts few micro-operations a cycle, and its hardware threads share this number.
bool intel_512(const DeviceInfo& device) { return device.simd_width == 16 && !device.arch.starts_with("znver"); }

// The register tile has `rows` rows of `vectors` vectors each. An element of a vector belongs to a query. A row belongs
// to a key (for scores) or to a column of V (for outputs). The default tile leaves at least a quarter of the registers
// to operands. A tile of four vectors takes fewer micro-operations than a tile of two, because a broadcast serves four
// multiply-adds. But a tile of four vectors has registers for fewer rows, and leaves less of the L1 cache to K and V.
// common/attention/kernels/log.md says which tile is faster on which core. On AArch64 each row needs a register for its
// factors, too, and one for a product of matrices serves two rows; one row more, and clang spills sums on some cores.
struct RegisterTile {
  int64_t vectors, rows;
};
RegisterTile register_tile(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const bool many = device.vector_registers >= 32;
  int64_t vectors = many && (device.simd_width <= 4 || intel_512(device)) ? 4 : 2;
  if (config.tile_vectors > 0) vectors = config.tile_vectors;
  while (vectors > 1 && config.block_r % (vectors * device.simd_width) != 0) vectors /= 2;
  const bool matrices = products_of(config, device, hooks) == Products::bf16_matrices;
  int64_t rows = config.tile_rows;
  if (rows == 0)
    rows = matrices ? 6 : on_arm(device) ? 25 / (vectors + 1) : (many ? 24 : 12) / std::max<int64_t>(vectors, 2);
  return {vectors, matrices ? rows + rows % 2 : rows};
}

// Whether the kernel copies rows of K. A kernel that does not copy the rows broadcasts each element directly from K.
// Rows are copied if they must be converted or rearranged, if they are rotated, or if they lie on pages. Rows that lie
// a multiple of 4 KiB apart share a set of the L1 cache, and may evict each other, so these rows are copied too, with
// one exception: on an Intel core with 512-bit vectors, these rows are not copied if a set has a way for every row of a
// register tile.
bool copies_k(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  constexpr int64_t cache_way_bytes = 4096;  // 64 sets of 64 bytes, as in L1 caches that are indexed within a page
  const Products products = products_of(config, device, hooks);
  const bool converts =
      products == Products::bf16_matrices || (products == Products::words && config.dtype != DType::f32);
  const int64_t heads = config.layout == Layout::bshd ? config.shape.kv_heads : 1;
  const int64_t row_bytes = heads * config.shape.head_dim * static_cast<int64_t>(size_bytes(config.dtype));
  const bool fit = intel_512(device) && register_tile(config, device, hooks).rows <= device.l1_ways;
  return converts || rotates(hooks) || config.page_size > 0 || (row_bytes % cache_way_bytes == 0 && !fit);
}

TunedLayout tuned_layout(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const RegisterTile tile = register_tile(config, device, hooks);
  return {config.shape.head_dim,
          config.block_r,
          config.block_c,
          device.simd_width,
          tile.vectors,
          tile.rows,
          products_of(config, device, hooks) != Products::words,
          copies_k(config, device, hooks)};
}

size_t threadgroup_bytes(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const AttentionShape& shape = config.shape;
  if (config.variant == "naive") return static_cast<size_t>(shape.kv_len + shape.head_dim) * sizeof(float);
  if (uses_amx(config, device, hooks)) {
    return static_cast<size_t>(AmxLayout(shape.head_dim, config.block_r, config.block_c).bytes);
  }
  if (config.variant == "tuned") {
    return static_cast<size_t>(tuned_layout(config, device, hooks).words) * sizeof(float);
  }
  return static_cast<size_t>(TiledLayout(shape.head_dim, config.block_r, config.block_c).words) * sizeof(float);
}

KernelSource source_of(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  KernelSource source;
  source.entry = "flash_forward";
  source.constants = {{"HEAD_DIM", config.shape.head_dim},
                      {"CAUSAL", config.shape.causal},
                      {"IN_TYPE", element_type(config.dtype)},
                      {"OUT_TYPE", element_type(config.out_dtype)}};
  if (config.variant == "naive") {
    source.path = "common/attention/kernels/naive.cpu.cpp";
    return source;
  }
  source.constants["BLOCK_R"] = config.block_r;
  source.constants["BLOCK_C"] = config.block_c;
  if (uses_amx(config, device, hooks)) {
    source.path = "common/attention/kernels/amx.cpu.cpp";
  } else if (config.variant == "tuned") {
    const Products products = products_of(config, device, hooks);
    source.path = products == Products::bf16_matrices ? "common/attention/kernels/neon_bf16.cpu.cpp"
                  : products == Products::f16         ? "common/attention/kernels/neon_f16.cpu.cpp"
                  : on_arm(device)                    ? "common/attention/kernels/neon.cpu.cpp"
                                                      : "common/attention/kernels/tuned.cpu.cpp";
    source.constants["VECTOR_WIDTH"] = device.simd_width;
    const RegisterTile tile = register_tile(config, device, hooks);
    source.constants["TILE_VECTORS"] = tile.vectors;
    source.constants["TILE_ROWS"] = tile.rows;
    source.constants["BF16_DOT"] = products != Products::words;
    source.constants["COPY_K"] = copies_k(config, device, hooks);
    source.constants["ASK_AHEAD"] = intel_512(device);
  } else {
    source.path = "common/attention/kernels/tiled.cpu.cpp";
    // tiled_vector takes the longest vector whose length divides both head_dim and the device's vector width.
    source.constants["LANES"] =
        config.variant == "tiled_vector" ? std::gcd<int64_t>(config.shape.head_dim, device.simd_width) : 1;
  }
  return source;
}

class CpuFlash : public FlashOperation {
 public:
  std::vector<std::string> variants() const override { return {"naive", "tiled_scalar", "tiled_vector", "tuned"}; }

  Launch kernel(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) const override {
    const AttentionShape& shape = config.shape;
    const int64_t rows = config.variant == "naive" ? 1 : config.block_r;
    return {.source = source_of(config, device, hooks),
            .grid = {static_cast<uint32_t>(divided_up(shape.q_len, rows)), static_cast<uint32_t>(shape.q_heads),
                     static_cast<uint32_t>(shape.batch)},
            .threads = 1,
            .threadgroup_bytes = threadgroup_bytes(config, device, hooks)};
  }

  // Takes the tile with the least expected time; of tiles with equal times, the first. Leaves out tiles that do not fit
  // in threadgroup memory, and tiles with at least twice as many rows as there are queries. If no tile is left, takes
  // the last tile of the list. A file of tuning replaces the list, and the costs that expected_time() assumes.
  void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& /*hints*/) const override {
    const FlashConfig given = config;
    const bool amx = uses_amx(config, device, nullptr);
    const auto usual_cost = [&](int64_t rows) { return static_cast<double>(rows) + reading_cost(config, device); };
    std::vector<TunedTile> tiles = tuned_tiles(config, device, amx ? "amx" : config.variant);
    if (tiles.empty()) {
      const int64_t keys = amx ? 256 : 128;
      for (const int64_t rows : {256, 128, 64}) tiles.push_back({rows, keys, usual_cost(rows)});
      for (const int64_t rows : {128, 64, 32, 16}) tiles.push_back({rows, 64, usual_cost(rows)});
    }
    double least = std::numeric_limits<double>::infinity();
    for (const TunedTile& tile : tiles) {
      FlashConfig candidate = given;
      if (given.block_r == 0) candidate.block_r = tile.block_r;
      if (given.block_c == 0) candidate.block_c = tile.block_c;
      const bool last = &tile == &tiles.back();
      const bool fits = threadgroup_bytes(candidate, device, nullptr) <= device.threadgroup_memory_bytes;
      const bool useful = tile.block_r < 2 * given.shape.q_len;
      const double time = fits && (useful || last)
                              ? tile.cost / usual_cost(tile.block_r) * expected_time(candidate, device)
                              : std::numeric_limits<double>::infinity();
      if (time < least || (last && std::isinf(least))) {
        least = time;
        config = candidate;
      }
    }
  }

 private:
  static double reading_cost(const FlashConfig& config, const DeviceInfo& device) {
    return uses_amx(config, device, nullptr) ? 25 : 4;
  }

  // Returns the relative time of a launch. The unit is the time that a thread takes for one row and one key. A tile
  // takes the time rows + reading_cost() for each key, because it reads the key once, however many rows it has. (On
  // recorded CPUs without AMX, a launch with tiles of 16 rows takes 1.12 to 1.7 times as long as a launch with tiles of
  // 256 rows; with AMX, a launch with tiles of 128 rows takes 1.1 times as long.) A thread that is free takes the next
  // tile; of causal tiles the longest come first. At the end of the launch threads are idle until the last tile is
  // done. For this idle time the function adds waiting * (time of the longest tile).
  static double expected_time(const FlashConfig& config, const DeviceInfo& device) {
    constexpr double waiting = 1 / 8.;
    const double reading = reading_cost(config, device);
    const AttentionShape& shape = config.shape;
    const auto rows_computed = [](int64_t rows) { return static_cast<double>(divided_up(rows, int64_t{16}) * 16); };
    const int64_t heads = shape.batch * shape.q_heads;
    const int64_t whole = shape.q_len / config.block_r, rest = shape.q_len % config.block_r;
    const double tile = static_cast<double>(config.block_r) + reading;
    const double head = static_cast<double>(whole) * tile + (rest > 0 ? rows_computed(rest) + reading : 0);
    const double all_keys = static_cast<double>(shape.kv_len);
    const double keys = shape.unmasked_pairs() / static_cast<double>(heads * shape.q_len);  // mean keys of a query
    const double rows = rows_computed(std::min(config.block_r, shape.q_len));
    const double longest = (rows + reading) * (shape.causal ? std::max(keys, all_keys - rows / 2) : all_keys);
    const auto units = static_cast<double>(device.units);
    double busy = std::max(static_cast<double>(heads) * head * keys / units, longest);
    if (!shape.causal) busy = std::max(busy, std::ceil(static_cast<double>(heads * whole) / units) * tile * all_keys);
    return busy + waiting * longest;
  }
};

}  // namespace

const FlashOperation& cpu_flash() {
  static const CpuFlash operation;
  return operation;
}

}  // namespace attn
