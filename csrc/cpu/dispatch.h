// Which instruction set's kernels run. Chosen once, when a backend is made.
#pragma once

#include <span>
#include <string>

#include "cpu/kernels.h"

namespace pb::cpu {

// What was compiled in, the most demanding first. The last one, "scalar", runs on every CPU.
std::span<const Kernels* const> compiled_targets();

// Whether this CPU and its operating system run the target's code. May ask the system for leave to
// use what the target needs, for the process and for good.
bool cpu_supports(const Kernels& target);

// The target of that name, or the fastest that this CPU supports if the name is empty. Throws
// kConfig where there is no such target or the CPU lacks it; `source` says in the message where the
// name was set.
const Kernels& choose_target(const std::string& name, const std::string& source);

}  // namespace pb::cpu
