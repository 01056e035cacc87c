#include "cpu/dispatch/dispatch.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "cpu/dispatch/cpuid.h"
#include "os/sysctl_macos.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace pb::cpu {
namespace {

bool always() { return true; }
bool never() { return false; }

#if defined(__x86_64__)
bool has_avx2() {
  const X86Features& f = x86_features();
  return f.avx2 && f.fma && f.f16c;
}
bool has_avx_vnni() { return has_avx2() && x86_features().avxvnni; }
bool has_avx512() {
  const X86Features& f = x86_features();
  return has_avx2() && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl;
}
bool has_avx512_vnni() { return has_avx512() && x86_features().avx512vnni; }
bool has_avx512_bf16() { return has_avx512_vnni() && x86_features().avx512bf16; }

bool has_avx512_amx() {
  const X86Features& f = x86_features();
  return has_avx512_bf16() && f.avx512vbmi && f.amx_tile && f.amx_bf16 && f.amx_int8 &&
         may_use_tiles();
}

// On Intel's cores, vdpbf16ps has a throughput of one in two cycles and fma of two per cycle, so
// that expanding bf16 to f32 is 1.4 times as fast (bench/native/kernels.cc). On AMD's cores,
// vdpbf16ps is twice as fast as fma.
bool is_intel() { return x86_features().is_intel; }

// The targets, starting with the most demanding: TARGET(name, whether this CPU and its system can
// run it, whether the next target is faster on this CPU).
#define PB_CPU_TARGETS(TARGET)                   \
  TARGET(avx512_amx, has_avx512_amx, never)      \
  TARGET(avx512_bf16, has_avx512_bf16, is_intel) \
  TARGET(avx512_vnni, has_avx512_vnni, never)    \
  TARGET(avx512, has_avx512, never)              \
  TARGET(avx_vnni, has_avx_vnni, never)          \
  TARGET(avx2, has_avx2, never)                  \
  TARGET(scalar, always, never)
#elif defined(__aarch64__)
#if defined(__linux__)
// The bits of HWCAP (asm/hwcap.h). Older headers lack the later ones.
constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
constexpr unsigned long kI8mm = 1ul << 13;     // HWCAP2_I8MM
constexpr unsigned long kBf16 = 1ul << 14;     // HWCAP2_BF16
bool has_neon() { return (getauxval(AT_HWCAP) & kAsimdDp) != 0; }
bool has_neon_i8mm() { return has_neon() && (~getauxval(AT_HWCAP2) & (kI8mm | kBf16)) == 0; }
#elif defined(__APPLE__)
bool has_neon() { return sysctl_number("hw.optional.arm.FEAT_DotProd") != 0; }
bool has_neon_i8mm() {
  return has_neon() && sysctl_number("hw.optional.arm.FEAT_I8MM") != 0 &&
         sysctl_number("hw.optional.arm.FEAT_BF16") != 0;
}
#else  // the system has no query for CPU features
bool has_neon() { return false; }
bool has_neon_i8mm() { return false; }
#endif

#define PB_CPU_TARGETS(TARGET)            \
  TARGET(neon_i8mm, has_neon_i8mm, never) \
  TARGET(neon, has_neon, never)           \
  TARGET(scalar, always, never)
#else
#define PB_CPU_TARGETS(TARGET) TARGET(scalar, always, never)
#endif

}  // namespace

#define PB_DECLARE(name, runs_here, is_slower) \
  namespace name {                             \
  extern const Kernels kKernels;               \
  }
PB_CPU_TARGETS(PB_DECLARE)

namespace {

struct Target {
  const Kernels* kernels;
  bool (*runs_here)();
  bool (*is_slower)();
};

#define PB_ROW(name, runs_here, is_slower) {&name::kKernels, runs_here, is_slower},
constexpr Target kTargets[] = {PB_CPU_TARGETS(PB_ROW)};

}  // namespace

// Returns whether prefetching speeds up the product. With prefetches, bf16 and int8 of few rows
// reach 0.8 of the speed on Zen 4 (bench/native/kernels.cc). Zen 3 and older CPUs have not been
// measured.
bool prefetches_quick() {
#if defined(__x86_64__)
  return !(x86_features().is_amd && x86_features().avx512f);
#else
  return true;
#endif
}

const ProductKernel& product_kernel(const Kernels& target, DType dtype, bool compressed) {
  switch (dtype) {
    case DType::kBF16:
      return compressed ? target.compressed_bf16 : target.bf16;
#define PB_CASE(constant, name, Format) \
  case DType::constant:                 \
    return target.name;
      PB_FORMATS(PB_CASE)
#undef PB_CASE
    default:
      return target.f32;
  }
}

int most_scratch_bytes(const Kernels& target) {
  int most = std::max(
      {target.f32.scratch_bytes, target.bf16.scratch_bytes, target.compressed_bf16.scratch_bytes});
  for (const DType dtype : kAllDTypes) {
    most = std::max(most, product_kernel(target, dtype).scratch_bytes);
  }
  return most;
}

std::vector<const Kernels*> compiled_targets() {
  std::vector<const Kernels*> kernels;
  for (const Target& target : kTargets) kernels.push_back(target.kernels);
  return kernels;
}

const Kernels* find_target(std::string_view name) {
  for (const Target& target : kTargets) {
    if (name == target.kernels->name) return target.kernels;
  }
  return nullptr;
}

bool cpu_supports(const Kernels& kernels) {
  for (const Target& target : kTargets) {
    if (target.kernels == &kernels) return target.runs_here();
  }
  return false;
}

const Kernels& choose_target(const std::string& name, const std::string& source) {
  for (const Target& target : kTargets) {
    const bool named = name == target.kernels->name;
    if (!name.empty() && !named) continue;
    if (target.runs_here() && (named || !target.is_slower())) return *target.kernels;
  }
  std::string supported;
  for (const Target& target : kTargets) {
    if (!target.runs_here()) continue;
    supported += (supported.empty() ? "" : ", ") + std::string(target.kernels->name);
  }
  throw Error(ErrorCode::kConfig,
              source + " is '" + name + "', which " +
                  (find_target(name) != nullptr ? "this CPU cannot run; it can run "
                                                : "is no CPU target; this CPU can run ") +
                  supported);
}

}  // namespace pb::cpu
