// Defines the table of one target's kernels. A target_*.cc includes it, and defines before that:
//   PB_CPU_TARGET   the target's name, and the name of its namespace
//   PB_CPU_VECTORS  the header of its vectors
// Everything but the table has internal linkage, for the reason given in kernels.h.
#pragma once

#include "cpu/kernels/activate-inl.h"
#include "cpu/kernels/attention/attention-inl.h"
#ifdef __AVX512BF16__
#include "cpu/kernels/attention/attention_dot-inl.h"
#endif
#include "cpu/kernels/gated_delta_net-inl.h"
#include "cpu/kernels/gemm/gemm-inl.h"
#ifdef PB_DECODES_BF16
#include "cpu/kernels/gemm/gemm_compressed_bf16-inl.h"
#endif
#include "cpu/targets/formats-inl.h"
#ifdef __AMX_BF16__
#include "cpu/kernels/amx/attention-inl.h"
#include "cpu/kernels/amx/gemm-inl.h"
#endif
#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/merge-inl.h"
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "cpu/kernels/neon/gemm_bf16-inl.h"
#endif
#include "cpu/kernels/attention/rope-inl.h"
#include "cpu/kernels/norm-inl.h"
#include "cpu/kernels/short_conv-inl.h"
#include "cpu/kernels/softcap-inl.h"

#define PB_STRING_OF(x) #x
#define PB_STRING(x) PB_STRING_OF(x)

namespace pb::cpu::PB_CPU_TARGET {

extern const Kernels kKernels;  // without this declaration a const has internal linkage

const Kernels kKernels = {
    .name = PB_STRING(PB_CPU_TARGET),
    .f32 = {{kTileColumns},
            RowFormat::kF32,
            kScratch<kTileColumns>,
            kTilesPerCall,
            each_tile<gemm_tile<F32Product>>},
#ifdef __AMX_BF16__
    .bf16 = {{kAmxColumns}, kBf16Row, kAmxScratch, {kAmxTiles, kAmxTiles}, amx_tiles<NoExpansion>},
    .compressed_bf16 = {{.columns = kAmxColumns, .run = kCompressedRun},
                        kBf16Row,
                        kAmxScratch,
                        {kAmxTiles, kAmxTiles},
                        amx_tiles<CompressedExpansion>},
#else
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    .bf16 = {{kTileColumns},
             kBf16Row,
             kScratch<kTileColumns>,
             kTilesPerCall,
             each_tile<gemm_tile<PairedBf16Product>>},
#else
    .bf16 = {{kTileColumns},
             kBf16Row,
             kScratch<kTileColumns>,
             kTilesPerCall,
             each_tile<gemm_tile<Bf16Product>>},
#endif
#ifdef PB_DECODES_BF16
    .compressed_bf16 = {{.columns = kTileColumns, .run = kCompressedRun},
                        kBf16Row,
                        sizeof(CompressedScratch),
                        kTilesPerCall,
                        each_tile<compressed_tile>},
#endif
#endif
#define PB_PRODUCT(constant, name, Format) .name = kProduct<Format>,
    PB_FORMATS(PB_PRODUCT)
#undef PB_PRODUCT
        .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rms_norm_add = rms_norm_add,
    .silu = activate<silu>,
    .gelu_tanh = activate<gelu_tanh>,
    .gelu = activate<gelu>,
    .relu_squared = activate<relu_squared>,
    .sigmoid = activate<sigmoid>,
    .xielu = xielu_row,
    .clamped_swiglu = clamped_swiglu,
    .copy = copy_row,
    .permute = permute_row,
    .rotate = rotate_head,
    .store_key_value = store_key_value,
#ifdef __AMX_BF16__
    .attend_segment = attend_segment_amx,
#elif defined(__AVX512BF16__)
    .attend_segment = attend_segment_dot,
#else
    .attend_segment = attend_segment,
#endif
    .merge_states = merge_states,
    .finish_attention = finish_attention,
    .gated_delta_net = gated_delta_net,
    .short_conv = short_conv,
    .scale_logits = scale_logits,
    .exp = exp_of,
    .tanh = tanh_of,
};

}  // namespace pb::cpu::PB_CPU_TARGET
