// What can make a kernel, and the launch of what it made.
//
// A generator's kernel is a KernelSource like any other: a C++ text that this process compiles, or a shell in C++
// around a fragment whose file is a program that writes machine code (kernels/halide.py), or machine code that was made
// elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/backend.h"
#include "common/attention/modifiers.h"
#include "common/launch/plan.h"
#include "common/records/case.h"
#include "proto5_codegen/kernels/generated.h"

namespace attn {

/// "scores", "softmax", "values", "attention", "modified": in the order of CodegenWork.
std::vector<std::string> work_names();
/// Of all devices: "hand", "search", "compiler", ...
std::vector<std::string> generator_names();
/// Those that have kernels for the device at hand, or would have them with a package that is not installed.
std::vector<std::string> generators_of(const DeviceInfo& device);

/// Everything a case says, typed.
struct CodegenCase {
  CodegenWork work = WORK_ATTENTION;
  std::string generator;
  AttentionShape shape;  // as many keys as queries, and as many key/value heads as query heads
  DType dtype = DType::f32;
  /// Of `search` and `halide_tuned`: what a search found, in the place of the usual constants (tuning.h).
  FunctionConstants constants = {};

  /// Throws BadInput for a case that makes no sense on any device.
  static CodegenCase from(const Case& config);
  /// A whole attention, and no part of it.
  bool whole() const { return work == WORK_ATTENTION || work == WORK_MODIFIED; }
  int64_t heads() const { return shape.batch * shape.q_heads; }
  /// Of a row of the output.
  int64_t columns() const { return work == WORK_SCORES || work == WORK_SOFTMAX ? shape.kv_len : shape.head_dim; }
  bool reads_in() const { return work == WORK_SOFTMAX || work == WORK_VALUES; }
  /// Multiply-adds are two; those of pairs that are not masked. Each input read once, each output written once.
  Work amount() const;
  /// That of common/attention with the tile that suits the device, or was found: what a whole attention launches.
  FlashConfig flash(const DeviceInfo& device) const;
  /// ALiBi and the soft cap of WORK_MODIFIED; nothing else is on.
  Modifiers modifiers() const;
  bool same_inputs(const CodegenCase& other) const;
};

/// Lines of what is written for this kernel: the C++ source and its headers but for common/kernel, which all kernels
/// share; of a program its function, with this schedule and without the others. Comments and blank lines do not count.
int64_t source_lines(const KernelSource& source);

/// Whether the case launches the kernel of common/attention, with its parameters; else a kernel takes CodegenParams.
bool is_flash(const CodegenCase& config);

/// Threadgroups of a kernel that a multiprocessor of a GPU has room for at the same time: by its registers, threads and
/// memory, which are those of sm_80 and sm_90.
int64_t threadgroups_at_once(const Binary& binary, const Launch& launch, const DeviceInfo& device);

/// The launch of the case's kernel, or why there is none.
Plan codegen_plan(const CodegenCase& config, const DeviceInfo& device);

/// The same of the two kinds of devices, without the work; the device takes the generator.
Plan cpu_codegen_plan(const CodegenCase& config, const DeviceInfo& device);
Plan cuda_codegen_plan(const CodegenCase& config, const DeviceInfo& device);

}  // namespace attn
