// Q, K and V of a shape on a device, with the oracle's results. The cases of one comparison share these inputs.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/attention/flash.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/experiment/setting.h"

namespace attn {

/// The values of Q, K and V.
///   random   independent standard normal values. Kernels are checked and then timed on these inputs. The scores are
///            about standard normal, so the maximum of a row hardly grows after its first block of keys.
///   needles  the random values, changed in two ways. First, every second query looks for one key, its needle, which is
///            drawn from all keys that the query sees. With a head_dim of 32 or more, the needle usually has most of
///            the row's weight: the running maximum jumps at the needle, and the kernel scales the outputs from earlier
///            keys down to almost nothing. Second, every block of 64 keys has its own signature: for each column of V,
///            1 or -1 is added to all rows of the block. If a kernel leaves out, repeats or replaces a block, the
///            outputs of queries without a needle have an error. With signatures this error is about five times as
///            large as without signatures.
enum class InputKind { random, needles };

struct AttentionInputs {
  Tensor q, k, v;
};
AttentionInputs make_inputs(const FlashConfig& config, uint64_t seed, InputKind kind);

/// The number of rows that the oracle checks: all rows of a small shape, else a sample.
int64_t rows_checked(const AttentionShape& shape);

/// Returns the memory that `copies` FlashInputs, their outputs and the oracle take. A case that runs on both kinds of
/// inputs needs two FlashInputs.
Memory flash_memory(const FlashConfig& config, int copies);

class FlashInputs {
 public:
  /// Draws tensors with `seed` if `input` is empty. Else takes q, k and v of the safetensors file `input`.
  FlashInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input,
              InputKind kind = InputKind::random);
  /// Takes tensors that fit the configuration; `seed` chooses the rows that the oracle checks.
  FlashInputs(Device& device, FlashConfig config, uint64_t seed, AttentionInputs inputs);
  ~FlashInputs();

  const FlashConfig& config() const { return config_; }
  const Tensor& q() const { return inputs_.q; }
  const Tensor& k() const { return inputs_.k; }
  const Tensor& v() const { return inputs_.v; }
  /// Q, K and V on the device, for launches that run before the attention kernel.
  Buffer& q_buffer() { return q_buffer_; }
  Buffer& k_buffer() { return k_buffer_; }
  Buffer& v_buffer() { return v_buffer_; }
  /// Returns the oracle's results, which are computed once for each `name`. Calls with the same `name` must pass the
  /// same `score` and `sink`.
  const ReferenceRows& reference(const std::string& name = "", const ScoreFunction& score = {},
                                 const SinkFunction& sink = {});

 private:
  friend class FlashProblem;
  FlashConfig config_;
  uint64_t seed_;
  AttentionInputs inputs_;
  Buffer q_buffer_, k_buffer_, v_buffer_, o_buffer_, lse_buffer_;
  std::map<std::string, ReferenceRows> references_;
};

}  // namespace attn
