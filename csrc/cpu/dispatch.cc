#include "cpu/dispatch.h"

#include "base/error.h"

namespace pb::cpu {
namespace {

#if defined(__x86_64__)
constexpr const Kernels* kTargets[] = {&avx512_bf16::kKernels, &avx512_vnni::kKernels,
                                       &avx512::kKernels, &avx2::kKernels, &scalar::kKernels};

// __builtin_cpu_supports asks CPUID, and XGETBV whether the system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
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
  if (&target == &avx512_bf16::kKernels) return has_vnni && __builtin_cpu_supports("avx512bf16");
  if (&target == &avx512_vnni::kKernels) return has_vnni;
  if (&target == &avx512::kKernels) return has_avx512();
  if (&target == &avx2::kKernels) return has_avx2();
#endif
  return &target == &scalar::kKernels;
}

const Kernels& choose_target(const std::string& name, const std::string& source) {
  std::string supported;
  const Kernels* named = nullptr;
  for (const Kernels* target : kTargets) {
    const bool runs = cpu_supports(*target);
    if (name.empty() && runs && !is_slower(*target)) return *target;
    if (runs) supported += (supported.empty() ? "" : ", ") + std::string(target->name);
    if (name == target->name) named = target;
  }
  if (named == nullptr) {
    throw Error(ErrorCode::kConfig, source + " is '" + name +
                                        "', which is no CPU target; this CPU can run " + supported);
  }
  if (!cpu_supports(*named)) {
    throw Error(ErrorCode::kConfig,
                source + " is '" + name + "', which this CPU cannot run; it can run " + supported);
  }
  return *named;
}

}  // namespace pb::cpu
