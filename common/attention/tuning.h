// Tuning: what was measured on devices of one architecture. findings/README.md describes the file,
// findings/tuning/ARCH.json, which is installed with the kernels.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/flash.h"

namespace attn {

/// Returns the path of a device's file of tuning, under the source root.
std::string tuning_path(const DeviceInfo& device);

/// Returns the content of a device's file of tuning, or an empty object if there is no file. Throws BadInput in one
/// line if the file is damaged.
nlohmann::ordered_json read_tuning(const DeviceInfo& device);

/// Returns the result of read_tuning(), which reads a file once in a process. A damaged file counts as no file; the log
/// then has one line.
const nlohmann::ordered_json& tuning(const DeviceInfo& device);

/// Logs that the device's file of tuning is damaged, at most once in a process for each file.
void warn_of_tuning(const DeviceInfo& device, const std::string& damage);

/// A tile of attention, and its cost: the time that a unit of the device (DeviceInfo::units) takes for one key of the
/// tile. A unit that works on several tiles at the same time takes this time for one key of each tile.
struct TunedTile {
  int64_t block_r, block_c;
  double cost = 1;
  double hooked_cost = 0;  // with a score hook that works on each score, as a soft cap does; 0: not measured
};

/// Returns the tiles that the device's file has for a kernel at this type and head_dim, the preferred tile first. The
/// result is empty if the file has none, or has a tile that the kernel does not take; the log then has one line.
std::vector<TunedTile> tuned_tiles(const FlashConfig& config, const DeviceInfo& device, const std::string& kernel);

}  // namespace attn
