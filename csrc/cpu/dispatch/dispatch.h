// The choice of a target's kernels, made once per backend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/dispatch/kernels.h"
#include "formats/dtype.h"

namespace pb::cpu {

// Returns the compiled targets, starting with the most demanding. The last one, "scalar", runs on
// every CPU.
std::vector<const Kernels*> compiled_targets();

// Returns the target with that name, even if this CPU cannot run it, or null if it was not
// compiled.
const Kernels* find_target(std::string_view name);

// Returns a target's product for weights of `dtype`; with `compressed`, for compressed bf16.
const ProductKernel& product_kernel(const Kernels& target, DType dtype, bool compressed = false);

// Returns the bytes of scratch that suffice for every product of a target.
int most_scratch_bytes(const Kernels& target);

// Returns GemmArgs::prefetch_quick for this CPU.
bool prefetches_quick();

// Returns whether this CPU and its operating system run the target's code. For AMX this requests
// permission to use tiles, which the process then has permanently.
bool cpu_supports(const Kernels& target);

// Returns the target with that name, or the fastest one that this CPU supports if the name is
// empty. Throws kConfig if there is no such target or the CPU lacks it; the message contains
// `source`, the place where the name was set.
const Kernels& choose_target(const std::string& name, const std::string& source);

}  // namespace pb::cpu
