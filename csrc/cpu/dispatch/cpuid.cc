#include "cpu/dispatch/cpuid.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pb::cpu {
namespace {

#if defined(__x86_64__)
struct Leaf {
  uint32_t a = 0, b = 0, c = 0, d = 0;

  Leaf() = default;
  // All registers are zero if the CPU lacks the leaf.
  Leaf(uint32_t leaf, uint32_t part) { __get_cpuid_count(leaf, part, &a, &b, &c, &d); }
};

bool bit(uint32_t word, int i) { return (word >> i & 1u) != 0; }

// Returns XCR0, the set of registers that the system saves.
uint32_t saved_registers() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

X86Features ask() {
  X86Features f;
  const Leaf vendor(0, 0);
  f.is_intel = vendor.b == signature_INTEL_ebx && vendor.c == signature_INTEL_ecx &&
               vendor.d == signature_INTEL_edx;
  f.is_amd = vendor.b == signature_AMD_ebx && vendor.c == signature_AMD_ecx &&
             vendor.d == signature_AMD_edx;
  const Leaf basic(1, 0);
  const uint32_t saved = bit(basic.c, 27) ? saved_registers() : 0;  // the bit OSXSAVE
  const auto saves = [saved](uint32_t registers) { return (saved & registers) == registers; };
  const bool ymm = saves(0x6) && bit(basic.c, 28);  // registers XMM and YMM; AVX
  const bool zmm = ymm && saves(0xe0);              // mask registers, and both halves of ZMM
  const bool tiles = saves(0x60000);                // tile configuration and tile data
  const Leaf more(7, 0);
  const Leaf still_more = more.a >= 1 ? Leaf(7, 1) : Leaf();  // more.a is the number of sub-leaves
  f.fma = ymm && bit(basic.c, 12);
  f.f16c = ymm && bit(basic.c, 29);
  f.avx2 = ymm && bit(more.b, 5);
  f.avxvnni = ymm && bit(still_more.a, 4);
  f.avx512f = zmm && bit(more.b, 16);
  f.avx512dq = zmm && bit(more.b, 17);
  f.avx512bw = zmm && bit(more.b, 30);
  f.avx512vl = zmm && bit(more.b, 31);
  f.avx512vbmi = zmm && bit(more.c, 1);
  f.avx512vnni = zmm && bit(more.c, 11);
  f.avx512bf16 = zmm && bit(still_more.a, 5);
  f.amx_bf16 = tiles && bit(more.d, 22);
  f.amx_tile = tiles && bit(more.d, 24);
  f.amx_int8 = tiles && bit(more.d, 25);
  return f;
}
#else
X86Features ask() { return {}; }
#endif

}  // namespace

const X86Features& x86_features() {
  static const X86Features features = ask();
  return features;
}

// Requests permission for AMX tiles. Linux saves tiles only for processes that have requested it,
// and refuses if the signal stack of a thread is too small. The request does not affect threads
// that use no tiles.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace pb::cpu
