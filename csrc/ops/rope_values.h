// The cosines and sines of rotary position embeddings.
#pragma once

#include <span>

#include "os/thread_pool.h"

namespace pb {

// Fills cosines and sines (n_positions, n_frequencies) for Backend::make_rope().
void compute_rope(std::span<const float> inv_freq, std::span<const float> factors, ThreadPool& pool,
                  float* cosines, float* sines);

}  // namespace pb
