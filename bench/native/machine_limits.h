// What a machine can do at most: bytes read and products computed in a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "os/thread_pool.h"

namespace pb::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Memory to read: written once, so that every page of it is there.
AlignedBuffer make_readable(size_t bytes);

// Seconds of one pass of plain loads and sums over all of it, by all threads of the pool.
double read_once(ThreadPool& pool, const AlignedBuffer& data);

struct Peak {
  const char* name;  // of the instruction
  double gop_s;      // 1e9 multiplications and additions a second
};

// Chains of each multiplying instruction that this CPU has, in registers, on all threads.
std::vector<Peak> peaks(ThreadPool& pool);

}  // namespace pb::bench
