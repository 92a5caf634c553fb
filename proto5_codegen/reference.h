// The oracle of proto5_codegen computes each work in double precision, directly from the definition of the work.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "proto5_codegen/generators.h"

namespace attn {

/// The inputs of the works: q, k, v [batch, heads, q_len, head_dim], in [batch, heads, q_len, kv_len]. A tensor that a
/// work does not read is empty.
struct CodegenTensors {
  Tensor q, k, v, in;
};

/// Returns all tensors that the case's work reads, with independent standard normal values times `size`.
CodegenTensors random_tensors(const CodegenCase& config, uint64_t seed, double size = 1);

/// The oracle's values of some rows of the output, and the tolerance of each value.
struct CodegenReference {
  std::vector<RowIndex> rows;
  std::vector<double> out, allowed;                // rows x columns
  std::vector<double> lse = {}, lse_allowed = {};  // the rows' log-sum-exps; empty unless the work is a whole attention
};

/// Returns the rows to check: all rows of a small case, else a sample, so that checking stays cheaper than measuring.
std::vector<RowIndex> checked_rows(const CodegenCase& config, uint64_t seed);

/// Computes `rows` of the output in double, and the tolerance of each value.
CodegenReference codegen_reference(const CodegenCase& config, const CodegenTensors& tensors,
                                   const std::vector<RowIndex>& rows);

}  // namespace attn
