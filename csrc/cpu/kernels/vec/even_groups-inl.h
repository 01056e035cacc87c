// Division of rows or queries into groups of nearly equal size, each processed by code that is
// compiled for its size.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Calls body.operator()<n>() for 1 <= n <= kMost.
template <int kMost, typename Body>
PB_INLINE void with_count(int n, Body body) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_count<kMost - 1>(n, body);
  }
  body.template operator()<kMost>();
}

// Returns the number of groups of at most kMost that cover [begin, end).
template <int kMost>
PB_INLINE int n_even_groups(int begin, int end) {
  return (end - begin + kMost - 1) / kMost;
}

// Calls body.operator()<n>(first) for groups of n <= kMost that cover [begin, end).
template <int kMost, typename Body>
PB_INLINE void for_even_groups(int begin, int end, Body body) {
  const int n_groups = n_even_groups<kMost>(begin, end);
  for (int g = 0, first = begin; g < n_groups; ++g) {
    const int n = (end - first + n_groups - g - 1) / (n_groups - g);
    with_count<kMost>(n, [&]<int kCount>() { body.template operator()<kCount>(first); });
    first += n;
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
