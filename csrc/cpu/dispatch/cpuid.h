// What an x86-64 CPU and its system have, of that which targets need.
#pragma once

namespace pb::cpu {

// False where the system does not save the registers.
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

// Of this CPU; nothing on other machines. CPUID itself is asked: __builtin_cpu_supports is answered
// by the compiler's run-time library, and that of zig, with which wheels are built, says no to all.
const X86Features& x86_features();

// Asks the system for tiles (amx_tile), which the process has for good then. Returns whether it
// has.
bool may_use_tiles();

}  // namespace pb::cpu
