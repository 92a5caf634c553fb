// For the tests of proto5_codegen: makes cases, and runs and checks their kernels on the device under test.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/testing/tested_device.h"
#include "proto5_codegen/problem.h"

namespace attn::test {

inline CodegenCase codegen_case(CodegenWork work, const std::string& generator, int64_t tokens, int64_t head_dim = 64,
                                bool causal = false, int64_t heads = 3, int64_t batch = 2) {
  CodegenCase one;
  one.work = work;
  one.generator = generator;
  one.dtype = on_cuda ? DType::bf16 : DType::f32;
  const bool whole = one.whole();
  one.shape = {.batch = batch,
               .q_heads = heads,
               .kv_heads = heads,
               .q_len = tokens,
               .kv_len = tokens,
               .head_dim = work == WORK_SOFTMAX ? 0 : head_dim,
               .causal = whole && causal};
  return one;
}

/// Returns the path of a kernel's file. The file is in the experiment's folder or, for a hand-written whole attention,
/// in common/attention.
inline std::string path_of(const std::string& file) {
  const std::string own = "proto5_codegen/kernels/" + file;
  return std::filesystem::exists(std::filesystem::path(source_root()) / own) ? own : "common/attention/kernels/" + file;
}

/// Launches the case's kernel on `tensors`, and checks the output against the oracle's results for the inputs `oracle`,
/// or for `tensors` if `oracle` is null.
inline Check checked(const CodegenCase& config, const CodegenTensors& tensors, const CodegenTensors* oracle = nullptr,
                     PipelineCache& cache = pipelines()) {
  const Plan plan = codegen_plan(config, device().info());
  constexpr uint64_t seed = 1;
  auto inputs = std::make_shared<CodegenInputs>(device(), config, seed, oracle ? *oracle : tensors);
  inputs->reference();
  if (oracle) {
    for (const auto& [buffer, tensor] : {std::pair{&inputs->q, &tensors.q},
                                         {&inputs->k, &tensors.k},
                                         {&inputs->v, &tensors.v},
                                         {&inputs->in, &tensors.in}}) {
      if (buffer->bytes() > 0) buffer->upload(tensor->data.data(), tensor->bytes());
    }
  }
  CodegenProblem problem(device(), cache, inputs, config, plan);
  return launched(problem);
}

inline Check checked(const CodegenCase& config, double size = 1) {
  return checked(config, random_tensors(config, 1, size));
}

/// checked(), but the kernel is compiled anew, because its text may have changed.
inline Check checked_anew(const CodegenCase& config) {
  PipelineCache cache(device(), "");
  return checked(config, random_tensors(config, 1), nullptr, cache);
}

}  // namespace attn::test
