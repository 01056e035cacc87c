// Reads a compressed tile of bf16 weights (cpu/weights/pack_compressed_bf16.h), run by run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kRunVectors = 4;
constexpr int kCompressedRun = kRunVectors * 2 * kWidth;  // numbers
constexpr int kCompressedBytes = compressed_run_bytes(kCompressedRun);

// The position in a tile that is being decompressed.
struct CompressedCursor {
  const uint8_t* high_bytes;
  const CompressedPatch* patch;
  const uint8_t* from;
  int run = 0;
};

PB_INLINE CompressedCursor begin_compressed(const GemmArgs& args, int tile) {
  const auto* at = static_cast<const uint8_t*>(args.weights);
  at += tile * static_cast<size_t>(reinterpret_cast<const CompressedHead*>(at)->tile_bytes);
  const auto* head = reinterpret_cast<const CompressedHead*>(at);
  return {head->high_bytes, reinterpret_cast<const CompressedPatch*>(at + sizeof(CompressedHead)),
          at + head->runs_at};
}

// Patches the high bytes of the next n runs that have no codes.
template <int n>
PB_INLINE void patch_runs(CompressedCursor& at, uint16_t* numbers) {
  for (; at.patch->run < at.run + n; ++at.patch) {
    uint16_t& number = numbers[(at.patch->run - at.run) * kCompressedRun + at.patch->place];
    number = static_cast<uint16_t>(at.patch->high << 8 | (number & 0xff));
  }
}

PB_INLINE void store_run(const Pairs (&run)[kRunVectors], uint16_t* to) {
#pragma GCC unroll 4
  for (int v = 0; v < kRunVectors; ++v) store_pairs(to + v * 2 * kWidth, run[v]);
}
PB_INLINE void load_run(const uint16_t* from, Pairs (&run)[kRunVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kRunVectors; ++v) run[v] = load_pairs(from + v * 2 * kWidth);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
