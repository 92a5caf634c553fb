// The generators of kernels, and the launch of a generated kernel.
//
// A generated kernel is a KernelSource of one of three kinds: C++ text; C++ text that is linked with machine code that
// a Python program writes (kernels/halide_pipelines.py); or machine code that was compiled ahead of time
// (compiled_ahead.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/attention/modifiers.h"
#include "common/launch/plan.h"
#include "common/records/case.h"
#include "proto5_codegen/kernels/generated.h"

namespace attn {

/// Returns the names of the works in the order of CodegenWork.
std::vector<std::string> work_names();
/// Returns the names of the generators of all devices.
std::vector<std::string> generator_names();
/// Returns the names of the generators that a sweep tries on the device. A generator may lack a kernel of some works,
/// or need a package that is missing.
std::vector<std::string> generators_of(const DeviceInfo& device);

/// The values of a case, typed.
struct CodegenCase {
  CodegenWork work = WORK_ATTENTION;
  std::string generator;
  AttentionShape shape;  // kv_len is q_len, and kv_heads is q_heads
  DType dtype = DType::f32;
  /// Constants that a search found (tuning.h) for `search` or `halide_tuned`. They replace the usual constants.
  FunctionConstants constants = {};

  /// Throws BadInput for an unknown work or dtype.
  static CodegenCase from(const Case& config);
  /// Whether the work is a whole attention, with or without modifiers.
  bool whole() const { return work == WORK_ATTENTION || work == WORK_MODIFIED; }
  int64_t heads() const { return shape.batch * shape.q_heads; }
  /// The columns of the output.
  int64_t columns() const { return work == WORK_SCORES || work == WORK_SOFTMAX ? shape.kv_len : shape.head_dim; }
  bool reads_in() const { return work == WORK_SOFTMAX || work == WORK_VALUES; }
  /// Only unmasked pairs of query and key count as flops; a multiply-add is two flops. Each input counts as read once,
  /// and each output as written once.
  Work amount() const;
  /// Returns the configuration of common/attention's kernel for a whole attention. Its tile is the one that a search
  /// found, else the device's usual tile.
  FlashConfig flash(const DeviceInfo& device) const;
  /// Returns ALiBi and the soft cap for WORK_MODIFIED, and no modifier for the other works.
  Modifiers modifiers() const;
  bool same_inputs(const CodegenCase& other) const;
};

/// Returns the number of lines that were written for this kernel, without comments and blank lines. The headers in
/// common/kernel, which all kernels share, do not count. In a Python program only the kernel's function counts, without
/// the blocks of other schedules.
int64_t source_lines(const KernelSource& source);

/// Whether the case launches the kernel of common/attention, with the parameters of that kernel. Other kernels take
/// CodegenParams, or the parameters that compiled_ahead.h describes.
bool is_flash(const CodegenCase& config);

/// Returns the number of a kernel's threadgroups that fit into a GPU's multiprocessor at the same time. Knows the
/// limits of sm_80 and sm_90.
int64_t threadgroups_at_once(const Binary& binary, const Launch& launch, const DeviceInfo& device);

/// Returns the plan of a case: the launch of the case's kernel, or the reason why there is no launch.
Plan codegen_plan(const CodegenCase& config, const DeviceInfo& device);

/// The parts of codegen_plan() for CPUs and for CUDA devices; the caller sets the plan's `work`. generators_of(device)
/// must contain the case's generator.
Plan cpu_codegen_plan(const CodegenCase& config, const DeviceInfo& device);
Plan cuda_codegen_plan(const CodegenCase& config, const DeviceInfo& device);

/// Returns the plan of a case for which is_flash() holds.
Plan flash_plan(const CodegenCase& config, const DeviceInfo& device);
/// Returns the launch of kernels/plain on a GPU: a thread computes an element or a row.
Launch plain_launch(const CodegenCase& config, const DeviceInfo& device);

}  // namespace attn
