// A counter-based random generator: the n-th number of a stream is a pure function of
// (seed, n), so a request's samples depend on nothing but its seed and its positions.
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace pb {

// Ten Philox rounds of `counter` under `key`.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1) with 53 random bits: sample `index` of the token at `position` of stream
// `seed`.
double uniform(uint64_t seed, uint64_t position, uint32_t index = 0);

}  // namespace pb
