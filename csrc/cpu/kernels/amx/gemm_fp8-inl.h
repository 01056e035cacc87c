// y = x W^T for FP8 weights (cpu/weights/pack_fp8.h) on AMX, for some packed weight tiles and some
// rows of bf16.
//
// bf16 holds every e4m3 number exactly: a block of 128 numbers of k is expanded without rounding,
// and multiplied by tdpbf16ps (gemm-inl.h describes the order) into sums that start at zero. A
// block adds fma(its sum, scale, output) to an output, in ascending order of blocks. Any number of
// rows uses the same instructions.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/expand-inl.h"
#include "cpu/kernels/amx/gemm-inl.h"
#include "cpu/kernels/amx/prefetch-inl.h"
#include "cpu/kernels/amx/sums-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kFp8Steps = kFp8BlockSize / kStepK;
constexpr int kAmxFp8Scales = kAmxColumns * 4;
constexpr int kAmxFp8Bytes = kAmxFp8Scales + kAmxColumns * kFp8BlockSize;

// The scratch consists of parked outputs, the sums of a block of K, and its weights.
constexpr int kFp8SumFloats = 4 * kTileFloats;
constexpr int kFp8Scratch = (kParkedFloats + kFp8SumFloats) * 4 + kFp8Steps * kStepNumbers * 2;

// The bf16 bits of the bytes below 8, which are subnormal: byte * 2^-9.
alignas(64) constexpr uint16_t kBf16OfSmall[32] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                   0x3c00, 0x3c20, 0x3c40, 0x3c60};

// Returns 32 e4m3 numbers as bf16.
PB_INLINE __m512i expand_fp8(__m256i bytes) {
  constexpr int kBiases = (127 - 7) << 7;  // difference of the exponent biases of bf16 and e4m3
  constexpr int kAOrBAndC = 0xf8;
  const __m512i wide = _mm512_cvtepi8_epi16(bytes);
  const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
  const __m512i normal =
      _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(kBiases));
  const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i number =
      _mm512_mask_permutexvar_epi16(normal, is_small, magnitude, _mm512_load_si512(kBf16OfSmall));
  return _mm512_ternarylogic_epi32(number, wide, _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                   kAOrBAndC);
}

// to (kFp8Steps * 16, 32, 2) = the numbers of a block, which comes from memory.
inline __attribute__((noinline)) void expand_fp8_block(const uint8_t* block, uint16_t* to) {
  for (int line = 0; line < kAmxFp8Scales; line += 64) prefetch_ahead(block + line);
  const uint8_t* from = block + kAmxFp8Scales;
  for (int i = 0; i < kFp8BlockSize / 2; ++i, from += 2 * kAmxColumns, to += 2 * kAmxColumns) {
    prefetch_ahead(from);
    const auto* halves = reinterpret_cast<const __m256i*>(from);
    _mm512_store_si512(to, expand_fp8(_mm256_loadu_si256(halves)));
    _mm512_store_si512(to + kAmxColumns, expand_fp8(_mm256_loadu_si256(halves + 1)));
  }
}

// Adds the sums of a block to the outputs of `rows` rows, at most kPairRows.
inline __attribute__((noinline)) void add_fp8_sums(const BlockSums& out, const float* scales,
                                                   const float* sums, int rows) {
  const Vec scale[2] = {load(scales), load(scales + kWidth)};
  for (int r = 0; r < rows; ++r) {
    const float* of_row = sums + r / kTileRows * 2 * kTileFloats + r % kTileRows * kWidth;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Vec before = begin_sum(out, kAmxColumns, r, v);
      end_sum(out, kAmxColumns, r, v, mul_add(load(of_row + v * kTileFloats), scale[v], before));
    }
  }
}

// The steps of the pass are blocks of K here.
inline void multiply_fp8_pass(const GemmArgs& args, const AmxPass& pass, float* scratch) {
  const int n_blocks = args.n_in / kFp8BlockSize;
  const int64_t x_bytes = args.x_stride * 2;
  float* sums = scratch + kParkedFloats;
  auto* expanded = reinterpret_cast<uint16_t*>(sums + kFp8SumFloats);
  int configured = 0;  // rows of the configured tiles
  for (int tile = pass.tile_begin; tile < pass.tile_end; ++tile) {
    const uint8_t* w = static_cast<const uint8_t*>(args.weights) +
                       static_cast<int64_t>(tile) * n_blocks * kAmxFp8Bytes;
    const int column = tile * kAmxColumns;
    float* parked =
        scratch + static_cast<int64_t>(tile - pass.tile_begin) * kPassRows * kAmxColumns;
    for (int b = pass.step; b < pass.end_step; ++b) {
      const uint8_t* block = w + static_cast<int64_t>(b) * kAmxFp8Bytes;
      expand_fp8_block(block, expanded);
      for (int row = 0; row < pass.rows; row += kPairRows) {
        const int rows = pass.rows - row < kPairRows ? pass.rows - row : kPairRows;
        const bool below = rows > kTileRows;
        if (rows != configured) {
          configure_tiles(below ? kTileRows : rows, below ? rows - kTileRows : 1);
          configured = rows;
        }
        begin_tiles(nullptr, true, below);
        const char* x = static_cast<const char*>(args.x) + (pass.row + row) * x_bytes +
                        static_cast<int64_t>(b) * kFp8BlockSize * 2;
#pragma GCC unroll 4
        for (int s = 0; s < kFp8Steps; ++s) {
          multiply_step(x + s * kStepK * 2, x_bytes, below, expanded + s * kStepNumbers);
        }
        park_tiles(sums, below);
        const BlockSums out{parked + static_cast<int64_t>(row) * kAmxColumns,
                            b == 0,
                            b + 1 == n_blocks,
                            args.y + (pass.row + row) * args.y_stride + column,
                            args.y_stride,
                            args.bias == nullptr ? nullptr : args.bias + column,
                            args.n_out - column,
                            args.add};
        add_fp8_sums(out, reinterpret_cast<const float*>(block), sums, rows);
      }
    }
  }
}

// Multiplies rows [row_begin, row_end) by weight tiles [tile_begin, tile_end), at most kAmxTiles.
inline void fp8_tiles(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                      int row_end, void* scratch) {
  const int n_blocks = args.n_in / kFp8BlockSize;
  for (int row = row_begin; row < row_end; row += kPassRows) {
    const int rows = row_end - row < kPassRows ? row_end - row : kPassRows;
    const int most = kPassBytes / (rows * kFp8BlockSize * 2);
    const int part = rows <= kPairRows ? n_blocks : most < 1 ? 1 : most;
    for (int block = 0; block < n_blocks; block += part) {
      const int end = block + part < n_blocks ? block + part : n_blocks;
      multiply_fp8_pass(args, {tile_begin, tile_end, row, rows, block, end},
                        static_cast<float*>(scratch));
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
