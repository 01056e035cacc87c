// Finds the token of a given rank, or the token at which the cumulative mass exceeds a target,
// among the scores of a row in the order "larger first, of equals the lower id first". One block
// does this without sorting.
//
// A histogram (tokens and mass per bin) of the distance to the largest score locates the token's
// bin; for typical scores, one or two histograms suffice. The few tokens of that bin are gathered
// in shared memory, and each counts the tokens before it. If there are too many (ties), the bin is
// split by the next digit of its keys, most significant digit first. All sums are of whole numbers,
// so that the result depends neither on the order of threads nor on their number.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/sampling/params_sampling.h"

namespace pb::cuda {
namespace {

using Mass = unsigned long long;      // units of 2^-kMassBits
using TokenKey = unsigned long long;  // smaller keys come first in the order

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kDigitBits = 10;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinGroup = 32;  // bins, one per lane
constexpr int kBinGroups = kBins / kBinGroup;
constexpr int kIdBits = 20;
constexpr int kKeyBits = 32 + kIdBits;
constexpr unsigned kGatherable = 1024;
constexpr float kSurelyNoMass = -31.0f;  // e^-31 < 2^-44

static_assert(kBinGroups == 32, "a lane a group");

// The bits of scores in descending order, with one value for both zeros. Finite numbers are in
// [kDescendingLargest, kDescendingSmallest], -inf is next, and +inf and NaNs are outside.
constexpr unsigned kDescendingLargest = 0x00800000u;
constexpr unsigned kDescendingSmallest = 0xff7fffffu;
constexpr unsigned kDescendingForbidden = kDescendingSmallest + 1;

__device__ __forceinline__ unsigned descending(float score) {
  constexpr unsigned kSign = 0x80000000u;
  const float v = score + 0.0f;  // one value for both zeros
  const unsigned bits = __float_as_uint(v);
  return (bits & kSign) != 0 ? bits : ~(bits | kSign);
}

__device__ __forceinline__ float from_descending(unsigned bits) {
  constexpr unsigned kSign = 0x80000000u;
  return __int_as_float(static_cast<int>((bits & kSign) != 0 ? bits : ~(bits | kSign)));
}

__device__ __forceinline__ TokenKey key_of(float score, int id) {
  return TokenKey{descending(score)} << kIdBits | static_cast<unsigned>(id);
}
__device__ __forceinline__ int token_of(TokenKey key) {
  return static_cast<int>(key & ((1u << kIdBits) - 1));
}
__device__ __forceinline__ float score_of(TokenKey key) {
  return from_descending(static_cast<unsigned>(key >> kIdBits));
}

// Calls f(score, id) for each of scores (n); one thread of the block handles each score.
template <typename F>
__device__ __forceinline__ void for_each_score(const float* scores, int n, F f) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(scores) % 16 == 0;
  const int stride = 4 * static_cast<int>(blockDim.x);
  for (int at = 4 * static_cast<int>(threadIdx.x); at < n; at += stride) {
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (is_aligned && at + 4 <= n) {
      v = *reinterpret_cast<const float4*>(scores + at);
    } else {
      v.x = scores[at];
      if (at + 1 < n) v.y = scores[at + 1];
      if (at + 2 < n) v.z = scores[at + 2];
      if (at + 3 < n) v.w = scores[at + 3];
    }
    f(v.x, at);
    if (at + 1 < n) f(v.y, at + 1);
    if (at + 2 < n) f(v.z, at + 2);
    if (at + 3 < n) f(v.w, at + 3);
  }
}

// The scores of a row, and their weights.
class Ranking {
 public:
  // scores (n); `range` is the range of those that are not -inf.
  __device__ __forceinline__ Ranking(const float* scores, int n, const ScoreRange& range,
                                     float inverse_temperature)
      : scores_(scores), n_(n), largest_(range.largest), inverse_(inverse_temperature) {
    // The bins cover the scores that can have a mass, or the range of scores if that is smaller.
    // One bin for all scores is correct as well, so that an infinite scale, and the NaN that it
    // makes of a distance of 0, are allowed.
    const float width = range.largest - range.smallest;
    const float deepest = -kSurelyNoMass / inverse_temperature;
    scale_ = (kBins - 1) / (width < deepest ? width : deepest);
  }

  __device__ __forceinline__ int size() const { return n_; }

  // Returns exp((score - largest) / temperature), or 0 if the mass would be 0.
  __device__ __forceinline__ float weight(float score) const {
    const float x = (score - largest_) * inverse_;
    return x > kSurelyNoMass ? exp_of(x) : 0.0f;
  }
  __device__ __forceinline__ Mass mass(float score) const {
    return static_cast<Mass>(weight(score) * static_cast<float>(Mass{1} << kMassBits));
  }
  // The bin does not decrease as the score decreases.
  __device__ __forceinline__ int bin(float score) const {
    const float distance = (largest_ - score) * scale_;
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  }

  // Calls f(score, id) for all scores; one thread of the block handles each score.
  template <typename F>
  __device__ __forceinline__ void for_each(F f) const {
    for_each_score(scores_, n_, f);
  }

 private:
  const float* scores_;
  int n_;
  float largest_;
  float inverse_;
  float scale_;
};

// The number of tokens and the mass of each bin. A mass is two words, because 64-bit atomics are
// slow.
struct Histogram {
  unsigned count[kBins];
  unsigned low[kBins];
  unsigned high[kBins];
  unsigned chunk_count[kBinGroups];  // sums over kBinGroup bins
  Mass chunk_mass[kBinGroups];
};

struct Place {  // a bin, or a chunk of them
  int index;
  unsigned count;         // of the bin or chunk
  unsigned count_before;  // of all bins before it
  Mass mass_before;
};

struct SelectedToken {
  TokenKey key;
  Mass mass;
  Mass mass_before;  // of all tokens before it in the order
};

// The shared memory of a block that selects tokens.
struct Selector {
  Histogram coarse;  // by Ranking::bin; filled by fill_coarse
  Histogram fine;    // of one bin, by a digit of its keys
  Place chunk, bin;
  unsigned n_gathered;
  Mass likely_mass;
  TokenKey keys[kGatherable];
  Mass masses[kGatherable];
  SelectedToken selected;
};

template <typename T>
__device__ __forceinline__ T warp_total(T v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

__device__ __forceinline__ void add(Histogram& h, int bin, unsigned count, Mass mass) {
  atomicAdd(&h.count[bin], count);
  if (mass == 0) return;
  const auto low = static_cast<unsigned>(mass);
  const unsigned carry = atomicAdd(&h.low[bin], low) + low < low ? 1 : 0;
  const unsigned high = static_cast<unsigned>(mass >> 32) + carry;
  if (high != 0) atomicAdd(&h.high[bin], high);
}

__device__ __forceinline__ Mass mass_in(const Histogram& h, int bin) {
  return Mass{h.high[bin]} << 32 | h.low[bin];
}

// Counts every token in bin_of(score, id); a token with a negative bin is not counted.
template <typename BinOf>
__device__ __forceinline__ void fill(Histogram& h, const Ranking& ranking, BinOf bin_of) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x)) {
    h.count[i] = h.low[i] = h.high[i] = 0;
  }
  __syncthreads();
  unsigned last_count = 0;  // the last bin has most of the unlikely tokens: one atomic per warp
  Mass last_mass = 0;
  ranking.for_each([&](float score, int id) {
    const int bin = bin_of(score, id);
    if (bin == kBins - 1) {
      ++last_count;
      last_mass += ranking.mass(score);
    } else if (bin >= 0) {
      add(h, bin, 1, ranking.mass(score));
    }
  });
  last_count = warp_total(last_count);
  last_mass = warp_total(last_mass);
  if (threadIdx.x % 32 == 0) add(h, kBins - 1, last_count, last_mass);
  __syncthreads();
  if (threadIdx.x < kBinGroups) {
    const int chunk = static_cast<int>(threadIdx.x);
    unsigned count = 0;
    Mass mass = 0;
    for (int i = 0; i < kBinGroup; ++i) {
      const int bin =
          chunk * kBinGroup + (i + chunk) % kBinGroup;  // each thread uses a different bank
      count += h.count[bin];
      mass += mass_in(h, bin);
    }
    h.chunk_count[chunk] = count;
    h.chunk_mass[chunk] = mass;
  }
  __syncthreads();
}

// Returns the mass of the tokens up to `last` whose weight is at least min_p.
__device__ __forceinline__ Mass likely_mass(Selector& s, const Ranking& ranking, TokenKey last,
                                            float min_p) {
  if (threadIdx.x == 0) s.likely_mass = 0;
  __syncthreads();
  Mass own = 0;
  ranking.for_each([&](float score, int id) {
    if (key_of(score, id) <= last && ranking.weight(score) >= min_p) own += ranking.mass(score);
  });
  own = warp_total(own);
  if (threadIdx.x % 32 == 0) atomicAdd(&s.likely_mass, own);
  __syncthreads();
  return s.likely_mass;
}

__device__ __forceinline__ void fill_coarse(Selector& s, const Ranking& ranking) {
  fill(s.coarse, ranking, [&](float score, int) { return ranking.bin(score); });
}

// Returns the mass of all tokens. Requires fill_coarse.
__device__ __forceinline__ Mass total_mass(const Selector& s) {
  Mass mass = 0;
  for (int chunk = 0; chunk < kBinGroups; ++chunk) mass += s.coarse.chunk_mass[chunk];
  return mass;
}

enum class By { kCount, kMass };

__device__ __forceinline__ bool holds(By by, Mass target, unsigned count_before, Mass mass_before,
                                      unsigned count, Mass mass) {
  const Mass before = by == By::kMass ? mass_before : count_before;
  return before <= target && target - before < (by == By::kMass ? mass : count);
}

// Finds the bin (or chunk) that contains `target` among 32 neighbours, one per lane. `before` has
// the sums of all bins before them.
__device__ __forceinline__ void place(By by, Mass target, unsigned count, Mass mass,
                                      const Place& before, Place& found) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  unsigned count_until = count;
  Mass mass_until = mass;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other_count = __shfl_sync(kAllLanes, count_until, lane - step);
    const Mass other_mass = __shfl_sync(kAllLanes, mass_until, lane - step);
    if (lane >= step) {
      count_until += other_count;
      mass_until += other_mass;
    }
  }
  const unsigned count_before = before.count_before + count_until - count;
  const Mass mass_before = before.mass_before + mass_until - mass;
  if (holds(by, target, count_before, mass_before, count, mass)) {
    found = {before.index * 32 + lane, count, count_before, mass_before};
  }
}

// Sets s.bin to the bin of `h` that contains `target`: among all bins, or (is_fine) among those
// into which the last s.bin was split.
__device__ __forceinline__ void place_bin(Selector& s, const Histogram& h, bool is_fine, By by,
                                          Mass target) {
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    Place before = {0, 0, 0, 0};
    if (is_fine) before = {0, 0, s.bin.count_before, s.bin.mass_before};
    place(by, target, h.chunk_count[lane], h.chunk_mass[lane], before, s.chunk);
    __syncwarp();  // s.chunk is set, and s.bin has been read
    const int bin = s.chunk.index * kBinGroup + lane;
    place(by, target, h.count[bin], mass_in(h, bin), s.chunk, s.bin);
  }
  __syncthreads();
}

// Copies the tokens with wanted(score, key) to s.keys and s.masses, in any order. Returns their
// number; there must be at most kGatherable.
template <typename Wanted>
__device__ __forceinline__ unsigned gather(Selector& s, const Ranking& ranking, Wanted wanted) {
  if (threadIdx.x == 0) s.n_gathered = 0;
  __syncthreads();
  ranking.for_each([&](float score, int id) {
    const TokenKey key = key_of(score, id);
    if (!wanted(score, key)) return;
    const unsigned at = atomicAdd(&s.n_gathered, 1u);
    s.keys[at] = key;
    s.masses[at] = ranking.mass(score);
  });
  __syncthreads();
  return s.n_gathered;
}

// Returns the token that has `target` other tokens before it or, with kMass, the first token at
// which the cumulative mass exceeds `target`. Requires fill_coarse, and a target below the number
// of tokens, or below their mass.
__device__ __forceinline__ SelectedToken select_token(Selector& s, const Ranking& ranking, By by,
                                                      Mass target) {
  place_bin(s, s.coarse, false, by, target);
  const int coarse_bin = s.bin.index;
  TokenKey prefix = 0;
  int shift = kKeyBits;  // the key's bits from here on are `prefix`
  const auto is_within = [&](float score, TokenKey key) {
    return ranking.bin(score) == coarse_bin && key >> shift == prefix;
  };
  while (s.bin.count > kGatherable) {  // at most five times, until four keys are left
    fill(s.fine, ranking, [&](float score, int id) {
      const TokenKey key = key_of(score, id);
      if (!is_within(score, key)) return -1;
      return static_cast<int>(key >> (shift - kDigitBits)) & (kBins - 1);
    });
    place_bin(s, s.fine, true, by, target);
    shift -= kDigitBits;
    prefix = prefix << kDigitBits | static_cast<unsigned>(s.bin.index);
  }
  const unsigned n = gather(s, ranking, is_within);
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
    unsigned count_before = s.bin.count_before;
    Mass mass_before = s.bin.mass_before;
    for (unsigned j = 0; j < n; ++j) {
      const bool is_before = s.keys[j] < s.keys[i];
      count_before += is_before ? 1 : 0;
      mass_before += is_before ? s.masses[j] : 0;
    }
    if (holds(by, target, count_before, mass_before, 1, s.masses[i])) {
      s.selected = {s.keys[i], s.masses[i], mass_before};
    }
  }
  __syncthreads();
  return s.selected;
}

}  // namespace
}  // namespace pb::cuda
