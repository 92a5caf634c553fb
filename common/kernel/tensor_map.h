// A tensor map, an operand of Hopper's tensor copies (TMA), for host and kernels.
#pragma once

/// Opaque. The host fills the map (common/backends/cuda/tensor_map.h). A kernel gets the map inside its parameters,
/// which are declared as `const __grid_constant__`, and hands the address of the map to cp.async.bulk.tensor.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};
