// The matrix product of each weight format: kProduct<Format>, from which the table of kernels is
// filled for every row of formats/list.h.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_fp8-inl.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_iq4_nl-inl.h"
#include "cpu/kernels/gemm/gemm_mxfp4-inl.h"
#include "cpu/kernels/gemm/gemm_q5_0-inl.h"
#include "cpu/kernels/gemm/gemm_super_blocks-inl.h"
#include "cpu/kernels/gemm/gemm_words-inl.h"
#ifdef __AMX_BF16__
#include "cpu/kernels/amx/gemm-inl.h"
#include "cpu/kernels/amx/gemm_bytes-inl.h"
#include "cpu/kernels/amx/gemm_fp8-inl.h"
#endif

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Returns the product for weights, depending on their members; on AMX if the target has it.
template <typename Weights>
constexpr ProductKernel product_of() {
#ifdef __AMX_INT8__
  if constexpr (HasBlocks<Weights>) {
    if constexpr (Weights::kHasHalves) {
      return kByteProduct<HalfBytes<Weights>>;
    } else {
      return kByteProduct<MinBytes<Weights>>;
    }
  } else if constexpr (kStoresZeros<Weights>) {
    return kByteProduct<ZeroPointBytes<Weights>>;
  } else {
    return kByteProduct<GroupBytes<Weights>>;
  }
#else
  if constexpr (HasBlocks<Weights>) {
    return kGroupKernel<SuperBlockProduct<Weights>>;
  } else if constexpr (Weights::kZeroPoint == Int8Weights::kZeroPoint) {  // numbers of eight bits
    return kWholeByteKernel<Weights>;
  } else {
    return kGroupKernel<GroupProduct<Weights>>;
  }
#endif
}

template <typename Format>
constexpr ProductKernel kProduct = product_of<WeightsOf<Format>>();

#ifdef __AMX_BF16__
template <>
constexpr ProductKernel kProduct<Int8> = {
    {kAmxColumns}, kBf16Row, kAmxScratch, {kAmxTiles, kAmxTiles}, amx_tiles<Int8Expansion>};
template <>
constexpr ProductKernel kProduct<Int4> = {{kAmxColumns, Int4Expansion::kLines},
                                          kBf16Row,
                                          kAmxScratch,
                                          {kAmxTiles, kAmxTiles},
                                          amx_tiles<Int4Expansion>};
template <>
constexpr ProductKernel kProduct<Fp8> = {
    {kAmxColumns}, kBf16Row, kFp8Scratch, {kAmxTiles, kAmxTiles}, fp8_tiles};
#else
template <>
constexpr ProductKernel kProduct<Fp8> = {
    {kTileColumns}, kBf16Row, sizeof(Fp8Scratch), kTilesPerCall, each_tile<fp8_tile>};
#endif

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
