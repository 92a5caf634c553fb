#include "common/device/instruction_class.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attn {
namespace {

using Classes = std::vector<std::string>;

TEST(InstructionClass, OfX86) {
  EXPECT_EQ(x86_classes("\tvfmadd231ps\t%zmm1, %zmm2, %zmm3"), Classes{"multiply_add"});
  EXPECT_EQ(x86_classes("\tvfmadd231ps\t(%rcx,%r11,4), %zmm2, %zmm1"), (Classes{"multiply_add", "load_64"}));
  EXPECT_EQ(x86_classes("\tvfmadd231ps\t(%rax){1to16}, %zmm1, %zmm2"), (Classes{"multiply_add", "load_4"}));
  EXPECT_EQ(x86_classes("\tvmovups\t0x40(%r8), %zmm25"), Classes{"load_64"});
  EXPECT_EQ(x86_classes("\tvmovups\t%ymm0, (%rdi,%rax,4)"), Classes{"store_32"});
  EXPECT_EQ(x86_classes("\tvmovups\t%zmm0, (%rdi) {%k1}"), Classes{"store_64"});
  EXPECT_EQ(x86_classes("\tvmovaps\t(%rdi), %xmm3"), Classes{"load_16"});
  EXPECT_EQ(x86_classes("\tvbroadcastss\t-4(%r13,%rsi), %zmm26"), Classes{"load_4"});
  EXPECT_EQ(x86_classes("\tmovq\t%rax, 0x20(%rsp)"), Classes{"store_8"});
  EXPECT_EQ(x86_classes("\tmovzbl\t(%rdi), %eax"), Classes{"load_1"});
  EXPECT_EQ(x86_classes("\tmovslq\t(%rdi), %rax"), Classes{"load_4"});
  EXPECT_EQ(x86_classes("\tsetne\t(%rdi)"), Classes{"store_1"});
  EXPECT_EQ(x86_classes("\tidivq\t(%rdi)"), Classes{"load_8"});
  EXPECT_EQ(x86_classes("\tvcvtps2pd\t(%rdi), %zmm0"), Classes{"load_32"});
  EXPECT_EQ(x86_classes("\tvpmovzxwd\t(%rdi), %zmm1"), Classes{"load_32"});
  EXPECT_EQ(x86_classes("\tvpmovsxbd\t(%rdi), %ymm1"), Classes{"load_8"});
  EXPECT_EQ(x86_classes("\tvpmovdw\t%zmm1, (%rdi)"), Classes{"store_32"});
  EXPECT_EQ(x86_classes("\tvcvtph2ps\t(%rdi), %zmm1"), Classes{"load_32"});
  EXPECT_EQ(x86_classes("\tvcvtps2ph\t$4, %ymm1, (%rdi)"), Classes{"store_16"});
  EXPECT_EQ(x86_classes("\tvpbroadcastw\t(%rdi), %xmm1"), Classes{"load_2"});
  EXPECT_EQ(x86_classes("\tvpbroadcastd\t(%rdi), %zmm1"), Classes{"load_4"});
  EXPECT_EQ(x86_classes("\tvbroadcastf32x4\t(%rdi), %zmm1"), Classes{"load_16"});
  EXPECT_EQ(x86_classes("\tvextractf64x4\t$1, %zmm1, (%rdi)"), Classes{"store_32"});
  EXPECT_EQ(x86_classes("\tvaddpd\t(%rax){1to8}, %zmm1, %zmm2"), Classes{"load_8"});
  EXPECT_EQ(x86_classes("\tvmovd\t(%rdi), %xmm1"), Classes{"load_4"});
  EXPECT_EQ(x86_classes("\tvmovq\t%xmm1, (%rdi)"), Classes{"store_8"});
  EXPECT_EQ(x86_classes("\tvmovdqu64\t(%rdi), %zmm1"), Classes{"load_64"});
  EXPECT_EQ(x86_classes("\tvmovdqa\t(%rdi), %xmm1"), Classes{"load_16"});
  EXPECT_EQ(x86_classes("\tcmpq\t$64, (%rsp)"), Classes{"load_8"});
  EXPECT_EQ(x86_classes("\tleaq\t(%r8,%r9,4), %r14"), Classes{});
  EXPECT_EQ(x86_classes("\tprefetcht1\t(%rcx)"), Classes{});
  EXPECT_EQ(x86_classes("\tcallq\t0"), Classes{"call"});
  EXPECT_EQ(x86_classes("\tjne\t-0x10"), Classes{"branch"});
  EXPECT_EQ(x86_classes("\ttdpbf16ps\t%tmm2, %tmm1, %tmm0"), Classes{"matrix"});
  EXPECT_EQ(x86_classes("\tvaddps\t%zmm0, %zmm1, %zmm2"), Classes{});
}

TEST(InstructionClass, OfAArch64) {
  EXPECT_EQ(aarch64_classes("\tfmla\tv0.4s, v1.4s, v2.s[0]"), Classes{"multiply_add"});
  EXPECT_EQ(aarch64_classes("\tfmla\tz0.s, p0/m, z1.s, z2.s"), Classes{"multiply_add"});
  EXPECT_EQ(aarch64_classes("\tbfmlalb\tv0.4s, v1.8h, v2.8h"), Classes{"multiply_add"});
  EXPECT_EQ(aarch64_classes("\tfmadd\ts0, s1, s2, s3"), Classes{"multiply_add"});
  EXPECT_EQ(aarch64_classes("\tbfmmla\tv0.4s, v1.8h, v2.8h"), (Classes{"matrix", "multiply_add"}));
  EXPECT_EQ(aarch64_classes("\tldr\tq0, [x1, #16]"), Classes{"load_16"});
  EXPECT_EQ(aarch64_classes("\tldur\td0, [x1, #-8]"), Classes{"load_8"});
  EXPECT_EQ(aarch64_classes("\tldr\tw0, [x1, x2, lsl #2]"), Classes{"load_4"});
  EXPECT_EQ(aarch64_classes("\tldrh\tw0, [x1]"), Classes{"load_2"});
  EXPECT_EQ(aarch64_classes("\tldrsb\tx0, [x1]"), Classes{"load_1"});
  EXPECT_EQ(aarch64_classes("\tldrsw\tx0, [x1]"), Classes{"load_4"});
  EXPECT_EQ(aarch64_classes("\tldp\tq0, q1, [x8], #32"), Classes{"load_32"});
  EXPECT_EQ(aarch64_classes("\tstp\tx29, x30, [sp, #-16]!"), Classes{"store_16"});
  EXPECT_EQ(aarch64_classes("\tld1\t{ v0.4s, v1.4s, v2.4s }, [x0]"), Classes{"load_48"});
  EXPECT_EQ(aarch64_classes("\tld1r\t{ v0.4s }, [x0]"), Classes{"load_4"});
  EXPECT_EQ(aarch64_classes("\tst1\t{ v0.h }[3], [x0]"), Classes{"store_2"});
  EXPECT_EQ(aarch64_classes("\tst1\t{ v0.16b }, [x0]"), Classes{"store_16"});
  EXPECT_EQ(aarch64_classes("\tldr\tz0, [x0]"), Classes{});
  EXPECT_EQ(aarch64_classes("\tprfm\tpldl1keep, [x0]"), Classes{});
  EXPECT_EQ(aarch64_classes("\tfadd\tv0.4s, v1.4s, v2.4s"), Classes{});
  EXPECT_EQ(aarch64_classes("\tbic\tw0, w1, w2"), Classes{});
  EXPECT_EQ(aarch64_classes("\tbl\t0x10"), Classes{"call"});
  EXPECT_EQ(aarch64_classes("\tb.ne\t0x10"), Classes{"branch"});
  EXPECT_EQ(aarch64_classes("\tcbnz\tx0, 0x10"), Classes{"branch"});
}

TEST(InstructionClass, OfSass) {
  EXPECT_EQ(sass_classes("HGMMA.64x128x16.F32.BF16"), Classes{"matrix"});
  EXPECT_EQ(sass_classes("HMMA.16816.F32.BF16"), Classes{"matrix"});
  EXPECT_EQ(sass_classes("FFMA"), Classes{"multiply_add"});
  EXPECT_EQ(sass_classes("MUFU.EX2"), Classes{"exponential"});
  EXPECT_EQ(sass_classes("MUFU.RCP"), Classes{});
  EXPECT_EQ(sass_classes("LDG.E.128"), Classes{"load_16"});
  EXPECT_EQ(sass_classes("LDS"), Classes{"load_4"});
  EXPECT_EQ(sass_classes("STS.64"), Classes{"store_8"});
  EXPECT_EQ(sass_classes("STG.E.U8"), Classes{"store_1"});
  EXPECT_EQ(sass_classes("UTMALDG.4D"), Classes{"load_tile"});
  EXPECT_EQ(sass_classes("CALL.REL.NOINC"), Classes{"call"});
  EXPECT_EQ(sass_classes("BRA"), Classes{"branch"});
  EXPECT_EQ(sass_classes("IADD3"), Classes{});
}

}  // namespace
}  // namespace attn
