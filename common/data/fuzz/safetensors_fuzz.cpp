// Fuzzes the safetensors parser: for any bytes the parser must return tensors whose data match their shapes, or throw
// BadInput with one line. common/data/tests/safetensors_test.cpp replays the corpus.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "common/base/error.h"
#include "common/data/tensor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const auto& [name, tensor] :
         attn::parse_safetensors(std::as_bytes(std::span(data, size)), "input", {"q", "k", "v"})) {
      size_t bytes = attn::size_bytes(tensor.dtype);
      for (const int64_t length : tensor.shape) bytes *= static_cast<size_t>(length);
      if (tensor.data.size() != bytes) std::abort();
    }
  } catch (const attn::BadInput& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
