#include "cuda/weights/pack_groups.h"

#include <cstring>

#include "cuda/weights/weight_formats.h"

namespace pb::cuda {
namespace {

constexpr int kHalf = kGroup / 2;
static_assert(kScaleTile == kSuperBlock);
constexpr int kTileHeader = 16;  // bytes of d, d_min, scales and mins, and of the scales of Q6_K

// Of `to`, from byte `at` on.
template <typename T>
void put(std::byte* to, int64_t at, const T& value) {
  std::memcpy(to + at, &value, sizeof(value));
}

// Element i of the four that are pair of pairs j of a group.
int element_of(int j, int i) { return 2 * j + i % 2 + i / 2 * kHalf; }

// d and d_min, and then 12 bits for each group: those of two in 3 bytes.
void write_scale_and_min(const SuperGroup& group, int in_tile, std::byte* tile) {
  put(tile, 0, group.d);
  put(tile, 2, group.d_min);
  const int is_odd = in_tile % 2;
  const int bits = (group.scales[0] | group.scales[1] << 6) << 4 * is_odd;
  std::byte* const to = tile + 4 + in_tile / 2 * 3 + is_odd;
  to[0] |= static_cast<std::byte>(bits);
  to[1] |= static_cast<std::byte>(bits >> 8);
}

// n_bits of each number from bit 4 on, as T.
template <typename T>
void write_high_bits(const SuperGroup& group, int n_bits, std::byte* to) {
  T bits = 0;
  for (int j = 0; j < kHalf / 2; ++j) {
    for (int i = 0; i < 4; ++i) {
      bits |= static_cast<T>(group.numbers[element_of(j, i)] >> 4) << (4 * j + i) * n_bits;
    }
  }
  put(to, 0, bits);
}

}  // namespace

void write_group(const Int8Group& group, DType, int64_t index, const PackedRow& to) {
  put(to.values, index * kGroup, group.values);
  put(to.scales, index * 2, group.scale);
}

void write_group(const Int4Group& group, DType, int64_t index, const PackedRow& to) {
  put(to.values, index * kHalf, group.pairs);
  put(to.scales, index * 2, group.scale);
}

void write_group(const Int4ZpGroup& group, DType, int64_t index, const PackedRow& to) {
  put(to.values, index * kHalf, group.pairs);
  put(to.scales, index * 4, group.scale);
  put(to.scales, index * 4 + 2, uint16_t{group.zero});
}

void write_group(const Mxfp4Group& group, DType, int64_t index, const PackedRow& to) {
  put(to.values, index * kHalf, group.pairs);
  put(to.scales, index, group.scale);
}

void write_group(const SuperGroup& group, DType dtype, int64_t index, const PackedRow& to) {
  for (int i = 0; i < kHalf; ++i) {
    const int pair = (group.numbers[i] & 15) | (group.numbers[i + kHalf] & 15) << 4;
    to.values[index * kHalf + i] = static_cast<std::byte>(pair);
  }
  const int64_t tile = index / kGroupsOfSuperBlock;
  const auto in_tile = static_cast<int>(index % kGroupsOfSuperBlock);
  if (dtype == DType::kQ6K) {
    std::byte* const scales = to.scales + tile * Q6KFormat::kScaleBytes;
    put(scales, in_tile * 2, group.scales);
    write_high_bits<uint64_t>(group, 2, scales + kTileHeader + in_tile * 8);
    put(to.scales + int64_t{to.n_tiles} * Q6KFormat::kScaleBytes, tile * 2, group.d);
  } else if (dtype == DType::kQ5K) {
    std::byte* const scales = to.scales + tile * Q5KFormat::kScaleBytes;
    write_scale_and_min(group, in_tile, scales);
    write_high_bits<uint32_t>(group, 1, scales + kTileHeader + in_tile * 4);
  } else {
    write_scale_and_min(group, in_tile, to.scales + tile * Q4KFormat::kScaleBytes);
  }
}

}  // namespace pb::cuda
