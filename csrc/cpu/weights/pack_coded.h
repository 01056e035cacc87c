// bf16 in 12 bits, exactly ("coded"): what is read of memory in a step is a quarter less.
//
// The high byte of a weight, its sign and seven bits of its exponent, is one of sixteen in nearly
// all of a matrix: it becomes a code of four bits. The few that have another high byte are patches,
// noted beside. A tile is
//   a head (CodedHead)
//   patches (CodedPatch) in ascending order, then kNoRun in all that is left of whole cache lines
//   runs of `run` numbers, in the order that a bf16 tile has (pack.h), of which each is run / 2
//   bytes of codes, then the numbers' low bytes
// A run is four vectors (see kernels/gemm/gemm_coded-inl.h): of numbers (4, lanes, 8), number (v,
// l, i) has its low byte at (v / 2, l, v % 2, i) and its code at (l, v % 2, i), in the low nibble
// of the byte if v < 2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/dispatch/kernels.h"

namespace pb::cpu {

// n_numbers: of the bf16 tile, whole runs.
size_t coded_tile_bytes(int64_t n_numbers, int run);

// Whether patches can name each run.
constexpr bool can_be_coded(int64_t n_numbers, int run) { return n_numbers / run < kNoRun; }

// Writes the coded form of a bf16 tile. Returns false where more numbers than there is room for
// would be patches.
bool code_tile(const uint16_t* numbers, int64_t n_numbers, int run, std::byte* tile);

// Where the numbers of a run lie.
class CodedPlaces {
 public:
  struct Place {
    uint8_t low;    // bytes from the run's begin
    uint8_t code;   // likewise
    uint8_t shift;  // of the code in its byte
  };

  explicit CodedPlaces(int run);

  Place operator[](int i) const { return places_[static_cast<size_t>(i)]; }

 private:
  static constexpr size_t kLongestRun = 128;
  std::array<Place, kLongestRun> places_{};
};

// Reads numbers of a coded tile, in the order of its bf16 tile.
class CodedNumbers {
 public:
  CodedNumbers(const std::byte* tile, int run);

  // index: not below that of the call before.
  uint16_t at(int64_t index);

 private:
  const uint8_t* high_bytes_;
  const CodedPatch* patch_;
  const uint8_t* runs_;
  CodedPlaces places_;
  int run_;
};

}  // namespace pb::cpu
