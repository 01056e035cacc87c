// How many cores this process may use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pb {

// Cores in the affinity mask of the calling thread, or fewer where a cgroup's CPU quota (rounded
// up) allows fewer. At least 1.
int available_cores();

// The smallest CPU quota, in whole cores rounded up, on the way from a process's cgroup to the
// root; nothing where none is set. Both generations of cgroups are understood.
//   mount        where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
// https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
// https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us)
std::optional<int> cgroup_cores(const std::string& mount, std::string_view self_cgroup);

}  // namespace pb
