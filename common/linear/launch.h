// Linear attention as launches: a configuration, its plan, and the class that encodes the plan's launches.
// kernels/linear.h has the mathematics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/divided_up.h"
#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"
#include "common/linear/feature.h"
#include "common/linear/kernels/linear.h"

namespace attn {

/// Parses "none", "head", "token" or "channel". Throws BadInput for another text.
Gate parse_gate(std::string_view text);

struct LinearConfig {
  std::string variant = "fused";  // "phases", "fused" or "recurrent"
  std::string scan = "none";      // for phases: "host", "passes" or "lookback"; else "none"
  int64_t sequences = 1, heads = 1;
  int64_t tokens = 1;    // of the longest sequence
  int64_t all_rows = 1;  // tokens of all sequences together
  bool ragged = false;   // sequences lie one after the other in batch 0 (LinearTensors::starts)
  int64_t head_dim = 64, value_dim = 64;
  DType dtype = DType::f32, out_dtype = DType::f32;  // dtype: of Q, K and V; out_dtype: of O
  int64_t chunk = 64;                                // tokens of a chunk; 0 for recurrent
  bool causal = true;
  Gate gate = GATE_NONE;
  bool normalised = false;
  double scale = 0;  // 0: 1 / sqrt(head_dim), or 1 if normalised
  Feature feature;
  int64_t segments = 0;     // for fused: into how many parts the longest sequence is cut; 0: the device's rule chooses
  int64_t span_chunks = 0;  // for scans on the device: how many chunks a span has; 0: a rule chooses
  int64_t delay = 0;        // for tests of look-back: how long every second span waits (DELAY, kernels/linear.h)

  double effective_scale() const;
  int64_t chunks() const { return divided_up(tokens, chunk); }  // of the longest sequence
  /// Returns how many chunk numbers there are (place_of_chunk).
  int64_t chunk_numbers() const { return ragged ? all_rows / chunk + sequences : sequences * chunks(); }
  int64_t state_elements() const { return head_dim * value_dim; }
  int64_t key_width() const { return gate == GATE_CHANNEL ? head_dim : 1; }  // numbers in the decay of one chunk
};

/// The memory and the dispatch of a kernel that takes a parameter struct of its own in place of SpanParams (Hopper's
/// fused kernel: FusedParams). A LinearLaunch with a workspace has no buffers of its own.
class LinearWorkspace {
 public:
  virtual ~LinearWorkspace() = default;
  virtual void dispatch(CommandEncoder& encoder, const Kernel& kernel, const Launch& launch,
                        const LinearParams& linear) const = 0;
  virtual const Buffer& memory() const = 0;
};

/// Linear attention as an operation of a device.
class LinearOperation {
 public:
  virtual ~LinearOperation() = default;
  /// Returns why this device does not take a configuration that is otherwise allowed; an empty text if the device takes
  /// it.
  virtual std::string unable(const LinearConfig& config) const = 0;
  /// Returns how many tokens of a chunk the device's kernels multiply at once.
  virtual int64_t step(const LinearConfig& config) const = 0;
  /// Returns how many rows of the state a threadgroup of a scan has. The number divides head_dim.
  virtual int64_t scan_rows(const LinearConfig& config, const DeviceInfo& device) const = 0;
  /// Returns how many threadgroups of a scan in passes keep the device busy.
  virtual int64_t scan_groups(const DeviceInfo& device) const = 0;
  /// Returns into how many segments the device's `fused` kernel without a workspace cuts the longest sequence.
  virtual int64_t segments(const LinearConfig& /*config*/, const DeviceInfo& /*device*/) const { return 1; }
  virtual Bound bound(const LinearConfig& config) const = 0;
  /// Returns the value of linear_chunk() for `variant`. Only "phases" and "fused" have chunks.
  virtual int64_t chunk(const std::string& variant) const = 0;
  /// Returns the kernels of a variant of one launch, or of `fused` with a workspace, in the order of their launches.
  virtual std::vector<std::string> kernels(const LinearConfig& config) const { return {config.variant}; }
  /// Sets the constants, grid, threads and threadgroup memory that depend on the device. The launch's entry names the
  /// kernel.
  virtual void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& device) const = 0;
  /// Returns the workspace of a configuration whose kernel needs one (LinearWorkspace), else null.
  virtual std::unique_ptr<LinearWorkspace> workspace(Device& /*device*/, const LinearConfig& /*config*/) const {
    return nullptr;
  }
  /// Whether the device's kernels prepare flags and tickets for the next launch. If not, encode() clears them before
  /// every launch.
  virtual bool resets_flags() const = 0;
};

/// Returns how many tokens a chunk of a variant has by default on the device.
int64_t linear_chunk(const std::string& variant, const DeviceInfo& device);

/// The tensors of a launch, in the device's memory; strides are in elements. On a GPU the addresses and strides of q,
/// k, v, o and of a gate by channel are multiples of 16 bytes, and so are the addresses of the states.
struct LinearTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch, heads, tokens, head_dim]; v has value_dim
  void* o = nullptr;                                    // [batch, heads, tokens, value_dim]
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  /// Logarithms of decays; none is above 0. The shape is [heads] for a gate by head, [batch, heads, tokens] by token,
  /// and [batch, heads, tokens, head_dim] by channel.
  const float* gate = nullptr;
  Strides gate_strides{};
  /// States [sequences, heads, head_dim, value_dim], key sums [sequences, heads, head_dim]. A null initial tensor means
  /// zeros; initial_key_sum is not allowed without initial_state. A null final tensor is not written.
  const float *initial_state = nullptr, *initial_key_sum = nullptr;
  float *final_state = nullptr, *final_key_sum = nullptr;
  const int* starts = nullptr;  // [sequences + 1], if ragged
  const void* feature_data = nullptr;
};

/// Returns the launches of a configuration and the work of its tokens, or the reason why the device does not take the
/// configuration. With scan "host" the plan has the launches before and after the scan, and Plan::host is true.
///
/// The work's flops are those of the recurrence (4 head_dim value_dim for each token and head). If causal and in
/// chunks, the flops of scores and of their products with V are added, for the unmasked pairs of tokens of each step
/// (LinearOperation::step()). The work's bytes are Q, K, V and O once, and a gate by token or channel. If `with_state`,
/// the bytes of the initial and the final states and key sums are added.
Plan linear_plan(const LinearConfig& config, const DeviceInfo& device, bool with_state);

/// Returns the reason why no launch can have these widths (head_dim of Q and K, value_dim of V), or an empty text if a
/// launch can have them.
std::string linear_unable(int64_t head_dim, int64_t value_dim);

/// Returns the flops of the recurrence alone: 4 head_dim value_dim for each token and head. This number is the same for
/// all variants.
double recurrence_flops(const LinearConfig& config);

/// The loaded kernels of one configuration, and the memory through which the kernels pass states. Two runs of one
/// LinearLaunch must not overlap. The device and the pipelines must outlive the LinearLaunch.
class LinearLaunch {
 public:
  /// `plan` must be the plan of `config`. Throws CompileError, OutOfMemory, and BadInput if the device does not take
  /// the plan.
  LinearLaunch(Device& device, PipelineCache& pipelines, const LinearConfig& config, const Plan& plan);

  /// Encodes all launches in order. Throws std::logic_error if the scan is "host".
  void encode(CommandEncoder& encoder, const LinearTensors& tensors) const;

  /// Only for scan "host": encode_before() encodes the launch before the scan, encode_after() the launch after it. In
  /// between, scan_on_host() copies to the host what each chunk adds to the state, computes the state before each
  /// chunk, and copies these states and, if requested, the final state to the device.
  void encode_before(CommandEncoder& encoder, const LinearTensors& tensors) const;
  void encode_after(CommandEncoder& encoder, const LinearTensors& tensors) const;
  struct HostScan {
    double down_s = 0, sum_s = 0, up_s = 0;  // seconds of the copies to the host, of the scan, of the copies back
  };
  /// starts: the values of LinearTensors::starts, on the host; empty unless ragged.
  HostScan scan_on_host(const LinearTensors& tensors, const std::vector<int>& starts);

  /// Returns the bytes of all buffers().
  size_t bytes() const;
  bool guards_intact() const;

 private:
  SpanParams parameters(const LinearTensors& tensors) const;
  std::vector<const Buffer*> buffers() const;  // the workspace's memory, or the buffers of this object
  void dispatch(CommandEncoder& encoder, const LinearTensors& tensors, size_t first, size_t end) const;

  Device* device_;
  LinearConfig config_;
  std::vector<Launch> launches_;
  std::vector<const Kernel*> kernels_;
  int64_t span_chunks_ = 1, spans_ = 1;
  Buffer states_, key_sums_, decays_, span_states_, span_key_sums_, span_decays_, states_after_, key_sums_after_;
  Buffer flags_, tickets_;
  std::unique_ptr<LinearWorkspace> workspace_;  // null: the kernels use the buffers above
  std::vector<float> host_states_, host_key_sums_, host_decays_;
};

}  // namespace attn
