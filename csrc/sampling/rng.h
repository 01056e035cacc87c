// A counter-based random number generator: the n-th number of a stream is a pure function of (seed,
// n), so a request's samples depend only on its seed and its positions. The generator is
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace pb {

// Applies ten Philox rounds to `counter` under `key`.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Returns a uniform number in [0, 1) with 53 random bits: number `index` for the token at
// `position` in the stream `seed`.
double uniform(uint64_t seed, uint64_t position, uint32_t index = 0);

}  // namespace pb
