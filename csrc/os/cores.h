// The default number of threads for computation.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/cpu_topology.h"

namespace pb {

inline constexpr int kMostThreads = 1024;  // per thread pool

struct Cores {
  CpuTopology cpus;             // the CPUs that this process may run on
  std::optional<double> quota;  // CPU time that the cgroups allow, in CPUs; nothing = no limit

  // Returns the number of physical cores, fast and slow, but at most the quota, rounded up. The
  // result is from 1 to kMostThreads.
  int n_threads() const;
};

// Reads the cores and the quota. Throws nothing but bad_alloc. A quota that cannot be read is
// treated as no limit.
//   root     the prefix of "/sys" and "/proc", for tests: "" = those of this machine
//   allowed  the CPUs of the affinity mask, at least one
Cores read_cores(const std::string& root, const std::vector<int>& allowed);

// Reads the cores of this machine for the affinity mask of the calling thread.
Cores read_cores();

// Returns read_cores().n_threads().
int available_cores();

// Returns the smallest CPU quota, in CPUs, of the cgroups from that of a process up to the root.
// Returns nothing if no quota is set. Supports cgroup v1 and v2.
//   mount        the directory where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
// https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
// https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us)
std::optional<double> cgroup_quota(const std::string& mount, std::string_view self_cgroup);

}  // namespace pb
