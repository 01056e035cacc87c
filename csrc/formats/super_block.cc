#include "formats/super_block.h"

#include <cstring>

namespace pb {
namespace {

// Scale and min of a group: those of groups 0 to 3 are the low 6 bits of bytes; the two high bits
// of these bytes belong to groups 4 to 7, whose low 4 bits are in the last four bytes.
void read_scales(const uint8_t* packed, int group, uint8_t (&scales)[2]) {
  if (group < 4) {
    scales[0] = packed[group] & 63;
    scales[1] = packed[group + 4] & 63;
    return;
  }
  const uint8_t low = packed[group + 4];
  scales[0] = static_cast<uint8_t>((low & 15) | packed[group - 4] >> 6 << 4);
  scales[1] = static_cast<uint8_t>(low >> 4 | packed[group] >> 6 << 4);
}

// Groups 2 i and 2 i + 1 share 32 bytes: the low nibbles and the high ones.
uint8_t nibble(const uint8_t* pairs, int group, int i) {
  const uint8_t pair = pairs[group / 2 * kGroup + i];
  return group % 2 == 0 ? pair & 15 : pair >> 4;
}

}  // namespace

SuperGroup read_super_group(DType dtype, const std::byte* block, int group) {
  SuperGroup out;
  if (dtype == DType::kQ6K) {
    Q6KBlock b;
    std::memcpy(&b, block, sizeof(b));
    out.d = b.d;
    std::memcpy(out.scales, b.scales + 2 * group, sizeof(out.scales));
    // 128 elements share 64 bytes of low nibbles and 32 of high bits.
    const uint8_t* pairs = b.pairs + group / 4 * 64 + group % 2 * kGroup;
    const uint8_t* high = b.high_bits + group / 4 * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      const int low = group % 4 < 2 ? pairs[i] & 15 : pairs[i] >> 4;
      out.numbers[i] = static_cast<uint8_t>(low | (high[i] >> group % 4 * 2 & 3) << 4);
    }
  } else if (dtype == DType::kQ5K) {
    Q5KBlock b;
    std::memcpy(&b, block, sizeof(b));
    out.d = b.d;
    out.d_min = b.d_min;
    read_scales(b.scales, group, out.scales);
    for (int i = 0; i < kGroup; ++i) {
      const int fifth = b.fifth_bits[i] >> group & 1;
      out.numbers[i] = static_cast<uint8_t>(nibble(b.pairs, group, i) | fifth << 4);
    }
  } else {
    Q4KBlock b;
    std::memcpy(&b, block, sizeof(b));
    out.d = b.d;
    out.d_min = b.d_min;
    read_scales(b.scales, group, out.scales);
    for (int i = 0; i < kGroup; ++i) out.numbers[i] = nibble(b.pairs, group, i);
  }
  return out;
}

void dequantise(DType dtype, const SuperGroup& group, float* x) {
  const float d = f16_to_f32(group.d);
  if (dtype == DType::kQ6K) {
    for (int i = 0; i < kGroup; ++i) {
      const auto scale = static_cast<int8_t>(group.scales[i / (kGroup / 2)]);
      x[i] = d * static_cast<float>(scale) * static_cast<float>(group.numbers[i] - kQ6Zero);
    }
    return;
  }
  const float scale = d * static_cast<float>(group.scales[0]);
  const float min = f16_to_f32(group.d_min) * static_cast<float>(group.scales[1]);
  for (int i = 0; i < kGroup; ++i) x[i] = scale * static_cast<float>(group.numbers[i]) - min;
}

}  // namespace pb
