// A tensor map, what Hopper's tensor copies (TMA) take: as host and kernels see it.
#pragma once

/// Opaque; the host fills it (common/backends/cuda/tensor_map.h). A kernel gets it inside its parameters, which it
/// declares as `const __grid_constant__`, and hands its address to cp.async.bulk.tensor.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};
