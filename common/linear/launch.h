// Linear attention as launches: a configuration, its plan, and the class that encodes the plan on a caller's tensors.
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

/// "none", "head", "token" or "channel"; throws BadInput for another text.
Gate parse_gate(std::string_view text);

struct LinearConfig {
  std::string variant = "fused";  // "phases", "fused" or "recurrent"
  std::string scan = "none";      // of phases: "host", "passes" or "lookback"; else "none"
  int64_t sequences = 1, heads = 1;
  int64_t tokens = 1;    // of the longest sequence
  int64_t all_rows = 1;  // tokens of all sequences together
  bool ragged = false;   // sequences lie one after the other in batch 0 (LinearTensors::starts)
  int64_t head_dim = 64, value_dim = 64;
  DType dtype = DType::f32, out_dtype = DType::f32;  // of Q, K and V, and of O
  int64_t chunk = 64;                                // tokens; of recurrent 0
  bool causal = true;
  Gate gate = GATE_NONE;
  bool normalised = false;
  double scale = 0;  // 0: 1 / sqrt(head_dim), or 1 if normalised
  Feature feature;
  int64_t segments = 0;     // of fused: parts of a sequence that run at once; 0: linear_segments()
  int64_t span_chunks = 0;  // chunks of a span, of scans on the device; 0: by rule
  int64_t delay = 0;        // for tests: delays every second threadgroup that looks back

  double effective_scale() const;
  int64_t chunks() const { return divided_up(tokens, chunk); }  // of the longest sequence
  /// How many chunk numbers there are (place_of_chunk).
  int64_t chunk_numbers() const { return ragged ? all_rows / chunk + sequences : sequences * chunks(); }
  int64_t state_elements() const { return head_dim * value_dim; }
  int64_t key_width() const { return gate == GATE_CHANNEL ? head_dim : 1; }  // elements of a decay
};

/// The memory, apart from the tensors, of a launch of a form that only one device has.
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
  /// The device's own reason not to take a configuration that is otherwise allowed; empty if there is none.
  virtual std::string unable(const LinearConfig& config) const = 0;
  /// Tokens of a chunk whose products are computed at once.
  virtual int64_t step(const LinearConfig& config) const = 0;
  /// Rows of the state for a threadgroup of a scan, a divisor of head_dim.
  virtual int64_t scan_rows(const LinearConfig& config, const DeviceInfo& device) const = 0;
  /// How many threadgroups of a scan in passes keep the device busy.
  virtual int64_t scan_groups(const DeviceInfo& device) const = 0;
  virtual Bound bound(const LinearConfig& config) const = 0;
  /// linear_chunk() of the variants "phases" and "fused".
  virtual int64_t chunk(const std::string& variant) const = 0;
  /// Adds to the launch what only this device's kernel of the launch's entry needs: constants, grid, threads and
  /// threadgroup memory.
  virtual void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& device) const = 0;
  /// The workspace of a form that needs other memory than LinearLaunch has; null for the other forms.
  virtual std::unique_ptr<LinearWorkspace> workspace(Device& /*device*/, const LinearConfig& /*config*/) const {
    return nullptr;
  }
  /// Whether the device's scans reset flags and tickets. Otherwise each launch clears them.
  virtual bool resets_flags() const = 0;
};

/// The default tokens of a chunk of a variant on the device.
int64_t linear_chunk(const std::string& variant, const DeviceInfo& device);

/// Segments of each sequence by rule: one segment if sequences and heads alone fill the device.
int64_t linear_segments(const LinearConfig& config, const DeviceInfo& device);

/// The tensors of a launch, on its device; strides are in elements. On a GPU addresses and strides are multiples of 16
/// bytes.
struct LinearTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch, heads, tokens, head_dim]; v has value_dim
  void* o = nullptr;                                    // [batch, heads, tokens, value_dim]
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  /// Logarithms of decays, none above 0: by gate [heads], [batch, heads, tokens] or [batch, heads, tokens, head_dim].
  const float* gate = nullptr;
  Strides gate_strides{};
  /// States [sequences, heads, head_dim, value_dim], key sums [sequences, heads, head_dim]. A null initial tensor means
  /// zeros; a null final tensor is not written.
  const float *initial_state = nullptr, *initial_key_sum = nullptr;
  float *final_state = nullptr, *final_key_sum = nullptr;
  const int* starts = nullptr;  // [sequences + 1], if ragged
  const void* feature_data = nullptr;
};

/// The launches of a configuration, and the work of its tokens; or the reason why the device does not take the
/// configuration. With scan host the plan has the launches before and after the scan, and Plan::host is true.
///
/// Work: the arithmetic of the recurrence, 4 head_dim value_dim a token and head, and, if causal, the products inside
/// chunks that are not masked. Bytes: Q, K, V and O once, the gate, and states that are read or written.
Plan linear_plan(const LinearConfig& config, const DeviceInfo& device, bool with_state);

/// The reason why no launch takes these widths, head_dim of Q and K, value_dim of V; empty if a launch does.
std::string linear_unable(int64_t head_dim, int64_t value_dim);

/// Arithmetic of the recurrence alone, the same for all forms: 4 head_dim value_dim for each token and head.
double recurrence_flops(const LinearConfig& config);

/// The loaded kernels of one configuration, with the memory for states between their phases. One LinearLaunch must not
/// run twice at the same time. Its device and pipelines outlive it.
class LinearLaunch {
 public:
  /// Runs the launches of the plan, which is of this configuration. Throws CompileError, OutOfMemory, and BadInput if
  /// the device does not take the plan.
  LinearLaunch(Device& device, PipelineCache& pipelines, const LinearConfig& config, const Plan& plan);

  /// All launches in turn. Throws std::logic_error with scan host.
  void encode(CommandEncoder& encoder, const LinearTensors& tensors) const;

  /// With scan host: the launches before the scan, the scan, and the launches after it. scan_on_host() copies what each
  /// chunk adds to the host, computes the state before each chunk, and copies these states back.
  void encode_before(CommandEncoder& encoder, const LinearTensors& tensors) const;
  void encode_after(CommandEncoder& encoder, const LinearTensors& tensors) const;
  struct HostScan {
    double down_s = 0, sum_s = 0, up_s = 0;
  };
  /// starts: the values of LinearTensors::starts, on the host; empty unless ragged.
  HostScan scan_on_host(const LinearTensors& tensors, const std::vector<int>& starts);

  /// Bytes of the memory between phases.
  size_t bytes() const;
  bool guards_intact() const;

 private:
  SpanParams parameters(const LinearTensors& tensors) const;
  std::vector<const Buffer*> buffers() const;  // the memory between phases
  void dispatch(CommandEncoder& encoder, const LinearTensors& tensors, size_t first, size_t end) const;

  Device* device_;
  LinearConfig config_;
  std::vector<Launch> launches_;
  std::vector<const Kernel*> kernels_;
  int64_t span_chunks_ = 1, spans_ = 1;
  Buffer states_, key_sums_, decays_, span_states_, span_key_sums_, span_decays_, states_after_, key_sums_after_;
  Buffer flags_, tickets_;
  std::unique_ptr<LinearWorkspace> workspace_;  // of a form that only one device has
  std::vector<float> host_states_, host_key_sums_, host_decays_;
};

}  // namespace attn
