// Compares rows of an output with the rows that the oracle computed.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "common/cases/reference.h"
#include "common/cases/tolerance.h"
#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/device/device.h"

namespace attn {

/// Compares `columns` numbers of each row. load(row, numbers) reads a row's numbers from the output. `want` and
/// `allowed` have rows x columns elements. A message calls element i of a row "NAME(row), column i", or "NAME(row)" if
/// `columns` is 1.
template <typename Row, typename Load, typename Name>
Check compare_rows(const std::vector<Row>& rows, size_t columns, const Load& load, std::span<const double> want,
                   std::span<const double> allowed, const Name& name) {
  std::vector<double> got(rows.size() * columns);
  for (size_t i = 0; i < rows.size(); ++i) load(rows[i], std::span(got).subspan(i * columns, columns));
  Check check = compare(got, want, allowed, [&](size_t i) {
    const std::string row = name(rows[i / columns]);
    return columns == 1 ? row : fmt::format("{}, column {}", row, i % columns);
  });
  check.rows_checked = static_cast<int64_t>(rows.size());
  return check;
}

/// Compares the oracle's rows with attention's output `o` and with the log-sum-exps `lse`, [batch, heads, queries]. The
/// oracle's rows of batch entry b are compared with the output's rows of batch entry `first_batch` + b. name(row) is a
/// row's name in messages.
template <typename Name>
Check compare_attention(const Tensor& o, std::span<const float> lse, const ReferenceRows& want,
                        const AttentionTolerance& allowed, const Name& name, int64_t first_batch = 0) {
  const auto load = [&](const RowIndex& row, std::span<double> numbers) {
    o.load(o.offset(first_batch + row.batch, row.head, row.q, 0), numbers);
  };
  const auto load_lse = [&](const RowIndex& row, std::span<double> number) {
    number[0] = lse[static_cast<size_t>(((first_batch + row.batch) * o.heads + row.head) * o.seq + row.q)];
  };
  Check check = compare_rows(want.rows, static_cast<size_t>(o.dim), load, want.o, allowed.o,
                             [&](const RowIndex& row) { return "o of " + name(row); });
  check.merge(compare_rows(want.rows, 1, load_lse, want.lse, allowed.lse,
                           [&](const RowIndex& row) { return "lse of " + name(row); }));
  return check;
}

/// Fails the check if a launch wrote before or after one of the buffers.
inline void check_guards(Check& check, std::initializer_list<const Buffer*> buffers) {
  for (const Buffer* buffer : buffers) {
    if (!buffer->guards_intact()) check.fail("a launch wrote before or after a buffer (a guard band was overwritten)");
  }
}

}  // namespace attn
