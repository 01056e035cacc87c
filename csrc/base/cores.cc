#include "base/cores.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

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

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
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

// "a,b,c" has the item "b".
bool has_item(std::string_view list, std::string_view item) {
  while (true) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == item) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

std::optional<int> cgroup_cores(const std::string& mount, std::string_view self_cgroup) {
  std::optional<int> fewest;
  std::istringstream lines{std::string(self_cgroup)};
  std::string line;
  while (std::getline(lines, line)) {  // "hierarchy:controllers:/path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !has_item(controllers, "cpu")) continue;
    const std::string base = v2 ? mount : mount + "/cpu";
    // Inside a container the path may be the host's, of which only the root is mounted here: a
    // directory that is not there is passed over, the root is always asked.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const auto cores = v2 ? quota_v2(base + path) : quota_v1(base + path);
      if (cores && (!fewest || *cores < *fewest)) fewest = cores;
      if (path.find('/') == std::string::npos) break;
    }
  }
  return fewest;
}

int available_cores() {
  int cores = affinity_cores();
  if (cores < 1) cores = static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream self_cgroup;
  self_cgroup << file.rdbuf();
  if (const auto quota = cgroup_cores("/sys/fs/cgroup", self_cgroup.str())) {
    cores = std::min(cores, *quota);
  }
  return std::max(cores, 1);
}

}  // namespace pb
