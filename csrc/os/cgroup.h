// The directories of a process's control groups.
#pragma once

#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace pb {

// Calls visit(directory, is_v2) for the directories of a controller ("cpu", "memory") on the way
// from a process's cgroup to the root, the root too, whether they are there or not.
//   mount        where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
void for_each_cgroup(const std::string& mount, std::string_view self_cgroup,
                     std::string_view controller,
                     FunctionRef<void(const std::string&, bool)> visit);

// A file's text; empty where there is no such file.
std::string text_of(const std::string& path);

// The text of /proc/self/cgroup; empty where there is none.
std::string self_cgroup_text();

// A file's first line; empty where there is no such file.
std::string first_line(const std::string& path);

}  // namespace pb
