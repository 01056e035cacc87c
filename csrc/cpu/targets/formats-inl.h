// The matrix product of each weight format: kProduct<Format>, which the table of kernels takes for
// every row of formats/list.h.
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

// Products by the kind of a format's weights: on the tile unit if the target has it.
#ifdef __AMX_INT8__
template <typename Weights>
constexpr ProductKernel kOfGroups = kByteProduct<GroupBytes<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfWholeBytes = kByteProduct<GroupBytes<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfGroupsWithZero = kByteProduct<ZeroPointBytes<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfBlocksWithMin = kByteProduct<MinBytes<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfBlocksWithHalves = kByteProduct<HalfBytes<Weights>>;
#else
template <typename Weights>
constexpr ProductKernel kOfGroups = kGroupKernel<GroupProduct<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfWholeBytes = kWholeByteKernel<Weights>;
template <typename Weights>
constexpr ProductKernel kOfGroupsWithZero = kGroupKernel<GroupProduct<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfBlocksWithMin = kGroupKernel<SuperBlockProduct<Weights>>;
template <typename Weights>
constexpr ProductKernel kOfBlocksWithHalves = kGroupKernel<SuperBlockProduct<Weights>>;
#endif

template <typename Format>
constexpr ProductKernel kProduct = {};

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
constexpr ProductKernel kProduct<Int8> = kOfWholeBytes<Int8Weights>;
template <>
constexpr ProductKernel kProduct<Int4> = kOfGroups<Int4Weights>;
template <>
constexpr ProductKernel kProduct<Fp8> = {
    {kTileColumns}, kBf16Row, sizeof(Fp8Scratch), kTilesPerCall, each_tile<fp8_tile>};
#endif
template <>
constexpr ProductKernel kProduct<Int4Zp> = kOfGroupsWithZero<Int4ZpWeights>;
template <>
constexpr ProductKernel kProduct<Q5_0> = kOfGroups<Q5_0Weights>;
template <>
constexpr ProductKernel kProduct<Iq4Nl> = kOfWholeBytes<Iq4NlWeights>;
template <>
constexpr ProductKernel kProduct<Mxfp4> = kOfGroups<Mxfp4Weights>;
template <>
constexpr ProductKernel kProduct<Q4K> = kOfBlocksWithMin<Q4KWeights>;
template <>
constexpr ProductKernel kProduct<Q5K> = kOfBlocksWithMin<Q5KWeights>;
template <>
constexpr ProductKernel kProduct<Q6K> = kOfBlocksWithHalves<Q6KWeights>;

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
