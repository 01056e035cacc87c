// The features of an x86-64 CPU and its operating system that targets require.
#pragma once

namespace pb::cpu {

// A feature is false if the system does not save its registers.
struct X86Features {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avxvnni = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx512vbmi = false;
  bool avx512vnni = false;
  bool avx512bf16 = false;
  bool amx_tile = false;
  bool amx_int8 = false;
  bool amx_bf16 = false;
  bool is_intel = false;
  bool is_amd = false;
};

// Returns the features of this CPU; all are false on other machines. CPUID is executed directly,
// because __builtin_cpu_supports needs the compiler's run-time library, and that of zig, which
// builds the wheels, reports no feature at all.
const X86Features& x86_features();

// Requests permission to use AMX tiles, which the process then has permanently. Returns whether it
// is granted.
bool may_use_tiles();

}  // namespace pb::cpu
