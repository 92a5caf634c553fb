// The kernels `decode`, `decode_join` and `expand` compile for several CPUs, old and new, of x86-64 and Arm.
#include <gtest/gtest.h>

#include "common/paged/decode.h"
#include "common/paged/prefill.h"
#include "common/paged/tests/compiled_config.h"
#include "common/testing/other_cpus.h"
#include "common/testing/some.h"

namespace attn {
namespace {

using PagedHosts = test::OtherCpus;

INSTANTIATE_TEST_SUITE_P(All, PagedHosts,
                         testing::Values("x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "graniterapids",
                                         "neoverse-n1"),
                         test::OtherCpus::name_of);

TEST_P(PagedHosts, CompileDecodingAndExpand) {
  test::Some some(2);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::int8}) {
    if (some.skips()) continue;
    const DType of_q = has_scales(dtype) ? DType::f32 : dtype;
    for (const Launch& launch : decode_plan(compiled_config(of_q, dtype, 3), info, 1024).launches) {
      expect_compiles(launch.source);
    }
    if (!has_scales(dtype)) continue;
    const Plan prompt = prefill_plan(compiled_config(DType::bf16, dtype, 40), info, 1, 1024);
    expect_compiles(planned_launch(prompt, "expand", info).source);
  }
}

}  // namespace
}  // namespace attn
