#include "os/cores.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>

#include "os/cgroup.h"
#include "os/sysctl_macos.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace pb {

namespace {

// Returns the CPUs of the affinity mask, or as many CPUs as the machine has if the system has no
// affinity masks.
[[maybe_unused]] std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#ifdef __linux__
  // sched_getaffinity fails with EINVAL if the kernel supports more CPUs than the set has bits. The
  // loop then tries a larger set.
  for (int n_cpus = 1024; n_cpus <= (1 << 20); n_cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(n_cpus);
    std::vector<cpu_set_t> set((bytes + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    if (sched_getaffinity(0, bytes, set.data()) != 0) continue;
    for (int cpu = 0; cpu < n_cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.data())) cpus.push_back(cpu);
    }
    break;
  }
#endif
  if (cpus.empty()) {
    cpus.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cpus.begin(), cpus.end(), 0);
  }
  return cpus;
}

// Returns quota / period in CPUs. Returns nothing for "max", -1 and text that does not parse.
std::optional<double> cpus_of(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double quota_us = std::strtod(quota.c_str(), &end);
  if (end == quota.c_str() || !(quota_us > 0)) return std::nullopt;
  const double period_us = std::strtod(period.c_str(), &end);
  if (end == period.c_str() || !(period_us > 0)) return std::nullopt;
  const double cpus = quota_us / period_us;
  if (!(cpus < 1e6)) return std::nullopt;
  return cpus;
}

std::optional<double> quota_v2(const std::string& directory) {
  std::istringstream fields(first_line(directory + "/cpu.max"));
  std::string quota, period;
  fields >> quota >> period;
  return cpus_of(quota, period);
}

std::optional<double> quota_v1(const std::string& directory) {
  return cpus_of(first_line(directory + "/cpu.cfs_quota_us"),
                 first_line(directory + "/cpu.cfs_period_us"));
}

}  // namespace

int Cores::n_threads() const {
  int threads = std::clamp(cpus.n_cores, 1, kMostThreads);
  if (quota && *quota < threads) threads = std::max(1, static_cast<int>(std::ceil(*quota)));
  return threads;
}

Cores read_cores(const std::string& root, const std::vector<int>& allowed) {
  return {read_topology(root, allowed),
          cgroup_quota(root + "/sys/fs/cgroup", text_of(root + "/proc/self/cgroup"))};
}

Cores read_cores() {
#ifdef __APPLE__
  return {topology_of_macos(sysctl_number), std::nullopt};
#elif defined(_WIN32)
  return {topology_of_windows(), std::nullopt};
#else
  return read_cores("", allowed_cpus());
#endif
}

int available_cores() { return read_cores().n_threads(); }

std::optional<double> cgroup_quota(const std::string& mount, std::string_view self_cgroup) {
  std::optional<double> least;
  for_each_cgroup(mount, self_cgroup, "cpu", [&](const std::string& directory, bool v2) {
    const auto quota = v2 ? quota_v2(directory) : quota_v1(directory);
    if (quota && (!least || *quota < *least)) least = quota;
  });
  return least;
}

}  // namespace pb
