// What is made of CPUID is what the run-time library of g++ makes of it.
#include "check.h"
#include "cpu/dispatch/cpuid.h"

TEST(features_are_those_that_the_compiler_finds) {
  const pb::cpu::X86Features& f = pb::cpu::x86_features();
#if defined(__x86_64__) && !defined(__clang__)  // clang may come with a library that does not ask
  EXPECT_EQ(f.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(f.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(f.f16c, __builtin_cpu_supports("f16c") != 0);
  EXPECT_EQ(f.avxvnni, __builtin_cpu_supports("avxvnni") != 0);
  EXPECT_EQ(f.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(f.avx512bw, __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(f.avx512dq, __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ(f.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(f.avx512vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
  EXPECT_EQ(f.avx512vnni, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(f.avx512bf16, __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(f.amx_tile, __builtin_cpu_supports("amx-tile") != 0);
  EXPECT_EQ(f.amx_int8, __builtin_cpu_supports("amx-int8") != 0);
  EXPECT_EQ(f.amx_bf16, __builtin_cpu_supports("amx-bf16") != 0);
  EXPECT_EQ(f.is_intel, __builtin_cpu_is("intel") != 0);
  EXPECT_EQ(f.is_amd, __builtin_cpu_is("amd") != 0);
#else
  EXPECT(f.avx2 || !f.avx512f);
#endif
}

PB_TEST_MAIN()
