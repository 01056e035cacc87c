// The physical cores behind logical CPUs, as Linux shows them in /sys, macOS by sysctl, and
// Windows.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pb {

struct CpuTopology {
  int n_online = 0;  // logical CPUs of the machine
  int n_cpus = 0;    // those of them that were asked about
  int n_cores = 0;   // physical cores that have one of these or more
  int n_slow = 0;  // of the cores: E cores, and those with less than 3/4 of the capacity of others
};

// Reads what /sys says about the CPUs `allowed`, at least one. CPUs that are offline do not count.
// Files that are missing or do not parse are ignored: then every CPU is a core of its own, and as
// fast as the others.
//   root  before "/sys": "" is the machine's own
// https://docs.kernel.org/admin-guide/cputopology.html (core_cpus_list, online),
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu (cpu_capacity)
CpuTopology read_topology(const std::string& root, const std::vector<int>& allowed);

// The same from what macOS says, which has no affinity masks.
//   number  the value of a name ("hw.physicalcpu"); 0 = there is none
// https://developer.apple.com/documentation/kernel/1387446-sysctlbyname
CpuTopology topology_of_macos(const std::function<int(const std::string&)>& number);

#ifdef _WIN32
// The same from Windows: all cores, whatever this process may run on.
CpuTopology topology_of_windows();
#endif

}  // namespace pb
