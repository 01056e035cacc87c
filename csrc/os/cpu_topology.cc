#include "os/cpu_topology.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "os/cgroup.h"

namespace pb {

namespace {

constexpr int kMostCpus = 1 << 16;     // numbers above are invalid; Linux supports up to 8192 CPUs
constexpr size_t kMostSiblings = 8;    // threads per core: POWER has eight, x86 two to four
constexpr int kMostLevels = 8;         // kinds of cores on macOS; there are two
constexpr double kAboutAsFast = 0.75;  // fraction of the fastest core's capacity

// Parses the number at the beginning of `text` and removes it from `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMostCpus) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// Returns the CPUs of a list like "0-3,8"; an empty set if the list does not parse.
std::set<int> cpus_of(std::string_view list) {
  std::set<int> cpus;
  while (!list.empty() && list.back() <= ' ') list.remove_suffix(1);
  while (!list.empty()) {
    const auto first = take_number(list);
    if (!first) return {};
    auto last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      last = take_number(list);
      if (!last || *last < *first) return {};
    }
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpus.end(), cpu);
    if (list.empty()) break;
    if (!list.starts_with(',') || list.size() == 1) return {};
    list.remove_prefix(1);
  }
  return cpus;
}

std::set<int> cpus_in(const std::string& path) { return cpus_of(first_line(path)); }

// Returns the lowest number of the CPUs that share a core with `cpu`, which identifies the core.
// Returns `cpu` itself if the list is implausible: it lacks `cpu`, or has more threads than any
// core has.
int core_of(const std::string& directory, int cpu) {
  std::set<int> siblings = cpus_in(directory + "/topology/core_cpus_list");
  if (siblings.empty()) siblings = cpus_in(directory + "/topology/thread_siblings_list");
  const bool is_true = siblings.contains(cpu) && siblings.size() <= kMostSiblings;
  return is_true ? *siblings.begin() : cpu;
}

}  // namespace

CpuTopology read_topology(const std::string& root, const std::vector<int>& allowed) {
  const std::string devices = root + "/sys/devices";
  const std::set<int> online = cpus_in(devices + "/system/cpu/online");
  std::set<int> cpus(allowed.begin(), allowed.end());
  std::erase_if(cpus, [&](int cpu) { return !online.contains(cpu); });
  // If no allowed CPU is in it, the list of online CPUs is wrong.
  if (cpus.empty()) cpus.insert(allowed.begin(), allowed.end());

  // On Intel's hybrid CPUs, each kind of core has a device for its performance counters.
  std::set<int> efficient = cpus_in(devices + "/cpu_atom/cpus");
  efficient.merge(cpus_in(devices + "/cpu_lowpower/cpus"));

  struct Core {
    bool is_efficient = false;
    int capacity = 0;
  };
  std::map<int, Core> cores;
  int fastest = 0;
  for (const int cpu : cpus) {
    const std::string directory = devices + "/system/cpu/cpu" + std::to_string(cpu);
    Core& core = cores[core_of(directory, cpu)];
    const std::string line = first_line(directory + "/cpu_capacity");
    std::string_view text = line;
    core.capacity = std::max(core.capacity, take_number(text).value_or(0));
    core.is_efficient |= efficient.contains(cpu);
    fastest = std::max(fastest, core.capacity);
  }
  // If all cores count as slow, they are equally fast, and n_slow is 0.
  const auto n_slow = std::ranges::count_if(cores, [&](const auto& entry) {
    const Core& core = entry.second;
    return core.is_efficient || (core.capacity > 0 && core.capacity < kAboutAsFast * fastest);
  });
  CpuTopology topology;
  topology.n_cpus = static_cast<int>(cpus.size());
  topology.n_online = std::max(static_cast<int>(online.size()), topology.n_cpus);
  topology.n_cores = static_cast<int>(cores.size());
  topology.n_slow = n_slow == topology.n_cores ? 0 : static_cast<int>(n_slow);
  return topology;
}

CpuTopology topology_of_macos(const std::function<int(const std::string&)>& number) {
  CpuTopology topology;
  topology.n_cpus = std::clamp(number("hw.logicalcpu"), 1, kMostCpus);
  topology.n_online = topology.n_cpus;
  topology.n_cores = std::clamp(number("hw.physicalcpu"), 1, topology.n_cpus);
  // Performance levels are kinds of cores, of which level 0 is the fastest. Macs with an Intel CPU
  // have one kind and lack this value.
  for (int level = 1; level < std::min(number("hw.nperflevels"), kMostLevels); ++level) {
    const int cores = number("hw.perflevel" + std::to_string(level) + ".physicalcpu");
    topology.n_slow += std::clamp(cores, 0, topology.n_cores - 1 - topology.n_slow);
  }
  return topology;
}

}  // namespace pb
