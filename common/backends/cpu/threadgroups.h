// Functions for devices that run commands on host threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/device/encoder.h"
#include "common/kernel/cpu.h"

namespace attn {

/// Returns the threadgroup with number `number`, which is less than grid.count(). Numbers count along x first, then y,
/// then z. `memory` is the threadgroup's memory.
inline Threadgroup threadgroup_at(const Grid& grid, uint64_t number, unsigned char* memory, size_t memory_bytes) {
  return {{static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
           static_cast<unsigned>(number / grid.x / grid.y)},
          {grid.x, grid.y, grid.z},
          memory,
          memory_bytes};
}

/// Calls `run` with each Dispatch and each Fill of the encoder in order. Returns the seconds between successive
/// timestamps.
template <typename Run>
std::vector<double> run_in_order(const CommandEncoder& encoder, const Run& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> stamps;
  for (const CommandEncoder::Command& command : encoder.commands()) {
    std::visit(
        [&](const auto& one) {
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, CommandEncoder::Timestamp>) {
            stamps.push_back(Clock::now());
          } else {
            run(one);
          }
        },
        command);
  }
  std::vector<double> seconds;
  for (size_t i = 1; i < stamps.size(); ++i) {
    seconds.push_back(std::chrono::duration<double>(stamps[i] - stamps[i - 1]).count());
  }
  return seconds;
}

}  // namespace attn
