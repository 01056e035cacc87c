#include "base/cores.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "base/cgroup.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace pb {

namespace {

// Cores of the affinity mask, 0 where the system does not say.
int affinity_cores() {
#ifdef __linux__
  // A kernel made for more CPUs than the set has bits answers EINVAL: ask again with a larger set.
  for (int n_cpus = 1024; n_cpus <= (1 << 20); n_cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(n_cpus);
    std::vector<cpu_set_t> set((bytes + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    if (sched_getaffinity(0, bytes, set.data()) == 0) return CPU_COUNT_S(bytes, set.data());
  }
#endif
  return 0;
}

// quota / period in whole cores; nothing for "max", -1 and what does not parse.
std::optional<int> cores_of(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double quota_us = std::strtod(quota.c_str(), &end);
  if (end == quota.c_str() || !(quota_us > 0)) return std::nullopt;
  const double period_us = std::strtod(period.c_str(), &end);
  if (end == period.c_str() || !(period_us > 0)) return std::nullopt;
  const double cores = quota_us / period_us;
  if (!(cores < 1e6)) return std::nullopt;
  const int whole = static_cast<int>(cores);
  return std::max(1, whole < cores ? whole + 1 : whole);
}

std::optional<int> quota_v2(const std::string& directory) {
  std::istringstream fields(first_line(directory + "/cpu.max"));
  std::string quota, period;
  fields >> quota >> period;
  return cores_of(quota, period);
}

std::optional<int> quota_v1(const std::string& directory) {
  return cores_of(first_line(directory + "/cpu.cfs_quota_us"),
                  first_line(directory + "/cpu.cfs_period_us"));
}

}  // namespace

std::optional<int> cgroup_cores(const std::string& mount, std::string_view self_cgroup) {
  std::optional<int> fewest;
  for_each_cgroup(mount, self_cgroup, "cpu", [&](const std::string& directory, bool v2) {
    const auto cores = v2 ? quota_v2(directory) : quota_v1(directory);
    if (cores && (!fewest || *cores < *fewest)) fewest = cores;
  });
  return fewest;
}

int available_cores() {
  int cores = affinity_cores();
  if (cores < 1) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const auto quota = cgroup_cores("/sys/fs/cgroup", self_cgroup_text())) {
    cores = std::min(cores, *quota);
  }
  return std::max(cores, 1);
}

}  // namespace pb
