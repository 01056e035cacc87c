// How much memory this process may still take.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pb {

// Bytes that can be taken without swapping: what the system says is available, or less where a
// cgroup leaves less. Where the system does not say, half of what the machine has.
size_t available_memory();

// "MemAvailable" of the text of /proc/meminfo, in bytes.
// https://docs.kernel.org/filesystems/proc.html (meminfo)
std::optional<size_t> available_of(std::string_view meminfo);

// The least that memory limits on the way from a process's cgroup to the root leave: the limit,
// less what is used, besides pages of files that can be dropped; nothing where no limit is set.
// Both generations of cgroups are understood.
//   mount        where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
// https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.stat),
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
std::optional<size_t> cgroup_memory(const std::string& mount, std::string_view self_cgroup);

}  // namespace pb
