// Chooses whose kernels run: once, when a backend is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/dispatch/kernels.h"
#include "formats/dtype.h"

namespace pb::cpu {

// The targets that were compiled in, the most demanding first. The last one, "scalar", runs on
// every CPU.
std::vector<const Kernels*> compiled_targets();

// The target of that name, whether or not this CPU runs it; null where none was compiled in.
const Kernels* find_target(std::string_view name);

// The product of a target for weights of `dtype`; coded: of bf16.
const ProductKernel& product_kernel(const Kernels& target, DType dtype, bool coded = false);

// Bytes of scratch that every product of a target finds enough.
int most_scratch_bytes(const Kernels& target);

// GemmArgs::prefetch_quick of this CPU.
bool prefetches_quick();

// Whether this CPU and its operating system run the target's code. For tiles this asks the system
// for permission to use them, which the process then has for good.
bool cpu_supports(const Kernels& target);

// Returns the target of that name, or the fastest that this CPU supports if the name is empty.
// Throws kConfig where there is no such target or the CPU lacks it; `source` says in the message
// where the name was set.
const Kernels& choose_target(const std::string& name, const std::string& source);

}  // namespace pb::cpu
