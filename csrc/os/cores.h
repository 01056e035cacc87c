// How many threads this process computes with, where nobody says.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/cpu_topology.h"

namespace pb {

inline constexpr int kMostThreads = 1024;  // of a pool

struct Cores {
  CpuTopology cpus;             // that this process may run on
  std::optional<double> quota;  // CPUs' worth of time that a cgroup grants; nothing = no limit

  // One thread a physical core, fast or slow, but no more than the quota, rounded up. From 1 to
  // kMostThreads.
  int n_threads() const;
};

// Reads the machine. Throws nothing but bad_alloc: what cannot be read is no limit.
//   root     before "/sys" and "/proc": "" is the machine's own
//   allowed  the CPUs of the affinity mask, at least one
Cores read_cores(const std::string& root, const std::vector<int>& allowed);

// The same for this machine and the affinity mask of the calling thread.
Cores read_cores();

// read_cores().n_threads().
int available_cores();

// The smallest CPU quota, in CPUs, on the way from a process's cgroup to the root; nothing where
// none is set. Both generations of cgroups are understood.
//   mount        where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
// https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
// https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us)
std::optional<double> cgroup_quota(const std::string& mount, std::string_view self_cgroup);

}  // namespace pb
