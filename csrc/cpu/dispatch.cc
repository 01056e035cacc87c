#include "cpu/dispatch.h"

#include "base/error.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pb::cpu {
namespace {

#if defined(__x86_64__)
constexpr const Kernels* kTargets[] = {&avx512_amx::kKernels,  &avx512_bf16::kKernels,
                                       &avx512_vnni::kKernels, &avx512::kKernels,
                                       &avx2::kKernels,        &scalar::kKernels};

// __builtin_cpu_supports asks CPUID, and XGETBV whether the system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Linux saves the tiles of those processes only that have asked for it, and refuses where a thread
// has too small a stack for signals. Asking changes nothing for threads that use no tiles.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Whether the target runs here but a lesser one is faster. vdpbf16ps is one instruction in two
// cycles on Intel's cores, where fma is two in one, so that expanding bf16 to f32 does 1.4 times as
// much (bench/kernels.cc); on AMD's, vdpbf16ps does twice the work of fma.
bool is_slower(const Kernels& target) {
  return &target == &avx512_bf16::kKernels && __builtin_cpu_is("intel");
}
#else
constexpr const Kernels* kTargets[] = {&scalar::kKernels};

bool is_slower(const Kernels&) { return false; }
#endif

}  // namespace

std::span<const Kernels* const> compiled_targets() { return kTargets; }

bool cpu_supports(const Kernels& target) {
#if defined(__x86_64__)
  const bool has_vnni = has_avx512() && __builtin_cpu_supports("avx512vnni");
  const bool has_bf16 = has_vnni && __builtin_cpu_supports("avx512bf16");
  if (&target == &avx512_amx::kKernels) {
    return has_bf16 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") &&
           __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
           may_use_tiles();
  }
  if (&target == &avx512_bf16::kKernels) return has_bf16;
  if (&target == &avx512_vnni::kKernels) return has_vnni;
  if (&target == &avx512::kKernels) return has_avx512();
  if (&target == &avx2::kKernels) return has_avx2();
#endif
  return &target == &scalar::kKernels;
}

const Kernels& choose_target(const std::string& name, const std::string& source) {
  bool exists = false;
  for (const Kernels* target : kTargets) {
    const bool named = name == target->name;
    exists = exists || named;
    if (!name.empty() && !named) continue;
    if (cpu_supports(*target) && (named || !is_slower(*target))) return *target;
  }
  std::string supported;
  for (const Kernels* target : kTargets) {
    if (!cpu_supports(*target)) continue;
    supported += (supported.empty() ? "" : ", ") + std::string(target->name);
  }
  const std::string start = source + " is '" + name + "', which ";
  throw Error(ErrorCode::kConfig, start +
                                      (exists ? "this CPU cannot run; it can run "
                                              : "is no CPU target; this CPU can run ") +
                                      supported);
}

}  // namespace pb::cpu
