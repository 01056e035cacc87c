// Entropy-compressed bf16: 12 bits per number, without loss, so that a step reads a quarter less
// memory.
//
// In nearly all weights of a matrix, the high byte (the sign and seven bits of the exponent) is one
// of sixteen values, and is replaced by a code of four bits. The few weights with another high byte
// are listed as patches. A tile consists of
//   a head (CompressedHead)
//   patches (CompressedPatch) in ascending order, followed by kNoRun up to the end of a cache line
//   runs of `run` numbers, in the order of a bf16 tile (pack.h): run / 2 bytes of codes, followed
//   by the numbers' low bytes
// A run is four vectors (see kernels/gemm/gemm_compressed_bf16-inl.h): in numbers (4, lanes, 8),
// number (v, l, i) has its low byte at (v / 2, l, v % 2, i) and its code at (l, v % 2, i), in the
// low nibble of the byte if v < 2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/dispatch/kernels.h"

namespace pb::cpu {

// Returns the bytes of a compressed tile. n_numbers is the size of the bf16 tile, a multiple of the
// run.
size_t compressed_tile_bytes(int64_t n_numbers, int run);

// Returns true if the number of runs fits the run index of patches.
constexpr bool can_be_compressed(int64_t n_numbers, int run) { return n_numbers / run < kNoRun; }

// Writes a bf16 tile in compressed form. Returns false if there is not enough room for its patches.
bool compress_tile(const uint16_t* numbers, int64_t n_numbers, int run, std::byte* tile);

// The addresses of the numbers in a run.
class CompressedPlaces {
 public:
  struct Place {
    uint8_t low;    // bytes from the start of the run
    uint8_t code;   // bytes from the start of the run
    uint8_t shift;  // position of the code in its byte, in bits
  };

  explicit CompressedPlaces(int run);

  Place operator[](int i) const { return places_[static_cast<size_t>(i)]; }

 private:
  static constexpr size_t kLongestRun = 128;
  std::array<Place, kLongestRun> places_{};
};

// Reads the numbers of a compressed tile, in the order of its bf16 tile.
class CompressedNumbers {
 public:
  CompressedNumbers(const std::byte* tile, int run);

  // Returns number `index`, which must not be lower than in the previous call.
  uint16_t at(int64_t index);

 private:
  const uint8_t* high_bytes_;
  const CompressedPatch* patch_;
  const uint8_t* runs_;
  CompressedPlaces places_;
  int run_;
};

}  // namespace pb::cpu
