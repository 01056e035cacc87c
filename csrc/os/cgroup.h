// The directories of a process's control groups.
#pragma once

#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace pb {

// Calls visit(directory, is_v2) for the directories of a controller ("cpu", "memory"), from the
// cgroup of a process up to and including the root. The directories need not exist.
//   mount        the directory where the cgroup file systems are mounted: "/sys/fs/cgroup"
//   self_cgroup  the text of /proc/self/cgroup
void for_each_cgroup(const std::string& mount, std::string_view self_cgroup,
                     std::string_view controller,
                     FunctionRef<void(const std::string&, bool)> visit);

// Returns the text of a file; empty if the file does not exist.
std::string text_of(const std::string& path);

// Returns the text of /proc/self/cgroup; empty if it does not exist.
std::string self_cgroup_text();

// Returns the first line of a file; empty if the file does not exist.
std::string first_line(const std::string& path);

}  // namespace pb
