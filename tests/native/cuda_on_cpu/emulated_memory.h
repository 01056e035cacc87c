// Memory of the emulated GPU: allocations of exact size, NaN at first, with guards around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace cuda_on_cpu {

class EmulatedMemory {
 public:
  size_t limit = size_t{1} << 30;  // bytes

  // Null where less is free.
  void* allocate(size_t bytes);
  // False where nothing was allocated there. Throws Error where a guard was written over.
  bool free(void* at);

  // True where all of it lies in one allocation.
  bool holds(const void* at, size_t bytes) const;
  // True where any of it lies in an allocation.
  bool touches(const void* at, size_t bytes) const;

  // Throws Error where something has been written just before or behind an allocation. Under
  // AddressSanitizer there are no guards: it sees such accesses itself.
  void check_guards() const;

  size_t used() const { return used_; }
  size_t n_allocations() const { return sizes_.size(); }

 private:
  std::map<uintptr_t, size_t> sizes_;  // of each allocation, by its address
  size_t used_ = 0;
};

}  // namespace cuda_on_cpu
