// Q, K and V of a shape on a device, with the oracle's answer: what the cases of one comparison share.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/attention/backend.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/device/device.h"

namespace attn {

/// What Q, K and V hold.
///   random   independent standard normal values. What is timed, and checked before. All keys weigh about the same, so
///            the maximum of a row hardly grows after its first block of keys.
///   needles  the same, changed in two ways. Every second query looks for one key of those that it sees, anywhere: with
///            a head_dim of 32 or more, this key takes most of the row's weight, so the maximum jumps there, and older
///            outputs shrink to little. And V has a signature of its own in every 64 keys, one value, 1 or -1, in each
///            column, so that a missing, doubled or foreign block moves the outputs of the other queries five times as
///            far as with random values alone.
enum class InputKind { random, needles };

struct AttentionInputs {
  Tensor q, k, v;
};
AttentionInputs make_inputs(const FlashConfig& config, uint64_t seed, InputKind kind);

class FlashInputs {
 public:
  /// Seeded tensors, or those of a safetensors file with q, k, v if `input` is not empty.
  FlashInputs(Device& device, FlashConfig config, uint64_t seed, const std::string& input,
              InputKind kind = InputKind::random);
  /// These tensors, which fit the configuration; `seed` chooses the rows that the oracle checks.
  FlashInputs(Device& device, FlashConfig config, uint64_t seed, AttentionInputs inputs);
  ~FlashInputs();

  const FlashConfig& config() const { return config_; }
  const Tensor& q() const { return inputs_.q; }
  const Tensor& k() const { return inputs_.k; }
  const Tensor& v() const { return inputs_.v; }
  /// On the device, for launches before that of attention.
  Buffer& q_buffer() { return q_buffer_; }
  Buffer& k_buffer() { return k_buffer_; }
  Buffer& v_buffer() { return v_buffer_; }
  /// The oracle's answer, computed once for each name of what changes it.
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
