// The physical cores behind the logical CPUs, as reported by /sys on Linux, by sysctl on macOS, and
// by Windows.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pb {

struct CpuTopology {
  int n_online = 0;  // logical CPUs of the machine that are online
  int n_cpus = 0;    // logical CPUs that are considered
  int n_cores = 0;   // physical cores with at least one of these CPUs
  int n_slow = 0;    // E cores, and cores with less than 3/4 of the fastest core's capacity
};

// Reads from /sys the topology of the CPUs `allowed`, at least one. CPUs that are offline are not
// counted. Files that are missing or do not parse are ignored: every CPU then counts as a core of
// its own, and all cores as equally fast.
//   root  the prefix of "/sys", for tests: "" = that of this machine
// https://docs.kernel.org/admin-guide/cputopology.html (core_cpus_list, online),
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu (cpu_capacity)
CpuTopology read_topology(const std::string& root, const std::vector<int>& allowed);

// Returns the topology from the sysctl values of macOS, which has no affinity masks.
//   number  returns the value of a name ("hw.physicalcpu"); 0 = there is no such name
// https://developer.apple.com/documentation/kernel/1387446-sysctlbyname
CpuTopology topology_of_macos(const std::function<int(const std::string&)>& number);

#ifdef _WIN32
// Returns the topology from Windows. It counts all cores, including those that this process may not
// run on.
CpuTopology topology_of_windows();
#endif

}  // namespace pb
