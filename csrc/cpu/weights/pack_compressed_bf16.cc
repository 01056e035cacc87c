#include "cpu/weights/pack_compressed_bf16.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace pb::cpu {
namespace {

constexpr int kHighBytes = 256;
constexpr uint8_t kNoCode = kCodes;
constexpr int64_t kNumbersOfAPatch = 512;  // numbers of a tile for each possible patch
constexpr size_t kPatchesOfALine = 64 / sizeof(CompressedPatch);

// Returns the number of patches for which a tile has room, including the final kNoRun.
size_t max_patches(int64_t n_numbers) {
  const auto wanted = static_cast<size_t>(n_numbers / kNumbersOfAPatch) + 1;
  return (wanted + kPatchesOfALine - 1) / kPatchesOfALine * kPatchesOfALine;
}

size_t runs_at(int64_t n_numbers) {
  return sizeof(CompressedHead) + max_patches(n_numbers) * sizeof(CompressedPatch);
}

std::array<int, kHighBytes> count_high_bytes(const uint16_t* numbers, int64_t n) {
  constexpr int kTables = 4;  // with one table, each increment would wait for the previous one
  std::array<std::array<int, kHighBytes>, kTables> counts{};
  for (int64_t i = 0; i < n; ++i) ++counts[i % kTables][numbers[i] >> 8];
  for (int t = 1; t < kTables; ++t) {
    for (int byte = 0; byte < kHighBytes; ++byte) counts[0][byte] += counts[t][byte];
  }
  return counts[0];
}

// Returns the most frequent high bytes; among equally frequent ones, the lower ones.
std::array<uint8_t, kCodes> most_frequent(const std::array<int, kHighBytes>& counts) {
  std::array<int, kHighBytes> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  std::partial_sort(bytes.begin(), bytes.begin() + kCodes, bytes.end(), [&](int a, int b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  std::array<uint8_t, kCodes> chosen;
  std::copy_n(bytes.begin(), kCodes, chosen.begin());
  return chosen;
}

}  // namespace

size_t compressed_tile_bytes(int64_t n_numbers, int run) {
  return runs_at(n_numbers) + static_cast<size_t>(n_numbers / run * compressed_run_bytes(run));
}

bool compress_tile(const uint16_t* numbers, int64_t n_numbers, int run, std::byte* tile) {
  const auto counts = count_high_bytes(numbers, n_numbers);
  const auto high_bytes = most_frequent(counts);
  std::array<uint8_t, kHighBytes> code_of;
  code_of.fill(kNoCode);
  int64_t n_patches = n_numbers;
  for (int code = 0; code < kCodes; ++code) {
    code_of[high_bytes[code]] = static_cast<uint8_t>(code);
    n_patches -= counts[high_bytes[code]];
  }
  if (n_patches >= static_cast<int64_t>(max_patches(n_numbers))) return false;

  auto& head = *reinterpret_cast<CompressedHead*>(tile);
  head = {.runs_at = static_cast<uint32_t>(runs_at(n_numbers)),
          .tile_bytes = static_cast<uint32_t>(compressed_tile_bytes(n_numbers, run))};
  std::ranges::copy(high_bytes, head.high_bytes);
  auto* patch = reinterpret_cast<CompressedPatch*>(tile + sizeof(CompressedHead));
  auto* const end = reinterpret_cast<CompressedPatch*>(tile + head.runs_at);
  auto* to = reinterpret_cast<uint8_t*>(end);
  const CompressedPlaces places(run);
  for (int64_t first = 0; first < n_numbers; first += run) {
    std::memset(to, 0, static_cast<size_t>(run) / 2);
    for (int i = 0; i < run; ++i) {
      const uint16_t number = numbers[first + i];
      const auto high = static_cast<uint8_t>(number >> 8);
      const CompressedPlaces::Place place = places[i];
      to[place.low] = static_cast<uint8_t>(number);
      if (code_of[high] == kNoCode) {
        *patch++ = {static_cast<uint16_t>(first / run), static_cast<uint8_t>(i), high};
      } else {
        to[place.code] |= static_cast<uint8_t>(code_of[high] << place.shift);
      }
    }
    to += compressed_run_bytes(run);
  }
  std::fill(patch, end, CompressedPatch{kNoRun, 0, 0});
  return true;
}

CompressedPlaces::CompressedPlaces(int run) {
  const int of_vector = run / 4;
  for (int i = 0; i < run; ++i) {
    const int vector = i / of_vector;
    const int in_half = i % of_vector / 8 * 16 + vector % 2 * 8 + i % 8;
    places_[static_cast<size_t>(i)] = {
        static_cast<uint8_t>(run / 2 + vector / 2 * (run / 2) + in_half),
        static_cast<uint8_t>(in_half), static_cast<uint8_t>(vector / 2 * 4)};
  }
}

CompressedNumbers::CompressedNumbers(const std::byte* tile, int run)
    : high_bytes_(reinterpret_cast<const CompressedHead*>(tile)->high_bytes),
      patch_(reinterpret_cast<const CompressedPatch*>(tile + sizeof(CompressedHead))),
      runs_(reinterpret_cast<const uint8_t*>(tile) +
            reinterpret_cast<const CompressedHead*>(tile)->runs_at),
      places_(run),
      run_(run) {}

uint16_t CompressedNumbers::at(int64_t index) {
  const int64_t run = index / run_;
  const int i = static_cast<int>(index % run_);
  const CompressedPlaces::Place place = places_[i];
  const uint8_t* from = runs_ + run * compressed_run_bytes(run_);
  uint8_t high = high_bytes_[from[place.code] >> place.shift & 0xf];
  while (patch_->run < run || (patch_->run == run && patch_->place < i)) ++patch_;
  if (patch_->run == run && patch_->place == i) high = patch_->high;
  return static_cast<uint16_t>(high << 8 | from[place.low]);
}

}  // namespace pb::cpu
