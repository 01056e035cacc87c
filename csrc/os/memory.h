// The amount of memory that this process can still allocate.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pb {

// Returns the bytes that can be allocated without swapping: the available memory of the system, or
// less if a cgroup limit leaves less. If the system does not report its available memory, half of
// the machine's memory is assumed.
size_t available_memory();

// Returns "MemAvailable" from the text of /proc/meminfo, in bytes.
// https://docs.kernel.org/filesystems/proc.html (meminfo)
std::optional<size_t> available_of(std::string_view meminfo);

// Returns the least memory that the limits of the cgroups from that of a process up to the root
// leave: the limit minus the usage, not counting pages of files, which the kernel drops before it
// kills a process. Returns nothing if
// no limit is set. Supports cgroup v1 and v2.
//   mount        the directory where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
// https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.stat),
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
std::optional<size_t> cgroup_memory(const std::string& mount, std::string_view self_cgroup);

}  // namespace pb
