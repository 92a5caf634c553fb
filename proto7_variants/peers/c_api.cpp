// Attention with its modifiers for a caller in another language: what scripts/peers_gpu.py and peers_variants.py need
// to measure a case in turn with another implementation, in one process. Functions that fail return null or 0 and leave
// a line in `message`.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <string>

#include "common/base/error.h"
#include "common/cases/axes.h"
#include "common/experiment/ceilings.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

namespace {

using namespace attn;

struct Peer {
  std::unique_ptr<Device> device;
  std::unique_ptr<PipelineCache> pipelines;
  std::unique_ptr<CacheFlush> flush;
  std::unique_ptr<VariantsProblem> problem;
  std::string tile;
  CommandEncoder launch;
};

void load(Peer& peer, const char* axes, const char* qkv_path) {
  Case config;
  std::istringstream words(axes);
  for (std::string word; words >> word;) {
    const Axis axis = parse_axis(word, variants_axes());
    config.set(axis.name, axis.values.front());
  }
  for (const Axis& axis : flash_input_axes(qkv_path)) config.set(axis.name, axis.values.front());
  const DeviceInfo& info = peer.device->info();
  complete_variants(config, info);
  if (config.text("task") == "expand") throw BadInput("a peer is task=attention or task=rope");
  const VariantsConfig variants = VariantsConfig::from(config);
  const Plan plan = variants_plan(variants, info);
  peer.problem.reset();  // its tensors make room
  VariantsPools pools;
  peer.problem = std::make_unique<VariantsProblem>(
      *peer.device, *peer.pipelines, variants_inputs(*peer.device, 0, qkv_path, variants, pools), variants, plan);
  peer.problem->poison();
  peer.tile = fmt::format("{}x{}", variants.flash.block_r, variants.flash.block_c);
  peer.launch = CommandEncoder();
  peer.flush->encode(peer.launch);
  peer.launch.timestamp();
  peer.problem->encode(peer.launch);
  peer.launch.timestamp();
}

template <typename Action>
auto guarded(char* message, size_t bytes, const Action& action) -> decltype(action()) {
  try {
    return action();
  } catch (const std::exception& error) {
    std::snprintf(message, bytes, "%s", error.what());
    return {};
  }
}

}  // namespace

extern "C" {

/// Opens a device; null on failure.
void* flash_peer_open(const char* device, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> void* {
    auto peer = std::make_unique<Peer>();
    peer->device = Device::open(device);
    peer->pipelines = std::make_unique<PipelineCache>(*peer->device, PipelineCache::default_folder());
    peer->flush = std::make_unique<CacheFlush>(*peer->device);
    return peer.release();
  });
}

void flash_peer_close(void* peer) { delete static_cast<Peer*>(peer); }

/// Loads q, k and v [batch, heads, seq, head_dim] from a safetensors file; `axes` says the rest: "variant=tuned
/// causal=1 out_dtype=bf16 layout=bhsd alibi=1". Returns the tile, null on failure.
const char* flash_peer_load(void* peer, const char* axes, const char* qkv_path, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> const char* {
    load(*static_cast<Peer*>(peer), axes, qkv_path);
    return static_cast<Peer*>(peer)->tile.c_str();
  });
}

/// Flushes the caches, launches once and returns the launch's seconds on the device; 0 on failure.
double flash_peer_launch(void* peer, char* message, size_t message_bytes) {
  return guarded(message, message_bytes,
                 [&] { return static_cast<Peer*>(peer)->device->submit(static_cast<Peer*>(peer)->launch).at(0); });
}

/// What the last launch wrote, as f32 [batch, q_heads, q_len, head_dim].
void flash_peer_output(void* peer, float* o) {
  const Tensor output = convert(static_cast<Peer*>(peer)->problem->output(), DType::f32, Layout::bhsd);
  std::memcpy(o, output.data.data(), output.bytes());
}

}  // extern "C"
