// The operations of Metal devices. No kernel of these devices has run on Apple hardware yet.
#pragma once

#include <cstddef>

#include "common/device/operations.h"

namespace attn {

const Operations& metal_operations();

// The parts of metal_operations(). Each part has a file of its own.
const FlashOperation& metal_flash();
const RopeOperation& metal_rope();
const DecodeOperation& metal_decode();
const LinearOperation& metal_linear();
const CeilingOperation& metal_ceilings();

/// Rounds up a size of threadgroup memory: Metal requires multiples of 16 bytes.
constexpr size_t metal_threadgroup_bytes(size_t bytes) { return (bytes + 15) / 16 * 16; }

/// metal_registers: about how many 32-bit registers a thread has. metal_other_registers: about how many of these
/// registers hold addresses and indices. The emulator's compiler does not count a kernel's registers, so metal_flash()
/// estimates their number from the kernel's matrices.
constexpr int metal_registers = 128, metal_other_registers = 28;

/// The feature of a device that has Metal 3.2 (macOS 15), and the option (KernelSource::assembler) of kernels that are
/// written for Metal 3.2. All other kernels are written for Metal 3.1.
inline constexpr const char *metal_3_2 = "metal3.2", *as_metal_3_2 = "-std=metal3.2";

/// The features of a device whose kernels can call functions through tables, in dynamic libraries, and of stitching
/// graphs.
inline constexpr const char *metal_tables = "metal.tables", *metal_libraries = "metal.libraries",
                            *metal_graphs = "metal.graphs";

}  // namespace attn
