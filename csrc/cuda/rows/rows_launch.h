// Launches of norms, activations and other kernels that process rows.
#pragma once

#include "config/config.h"
#include "cuda/driver/launch.h"
#include "cuda/rows/params_rows.h"
#include "formats/dtype.h"

namespace pb::cuda {

// Returns the dtype of activations for weights of a dtype: kF32, or kBF16.
inline DType activation_dtype(DType weights) {
  return weights == DType::kF32 ? DType::kF32 : DType::kBF16;
}

// out[i] = norm(x[rows[i]]) for n_rows rows. out_dtype is kF32 or kBF16.
Launch<NormParams> norm_launch(NormKind kind, DType out_dtype, int n_rows,
                               const NormParams& params);

// out[r] (=|+=) RMSNorm(y[r]) for n_rows rows, multiplied by the scale.
Launch<NormRowsParams> norm_rows_launch(int n_rows, const NormRowsParams& params);

// out = x for n_rows rows. out_dtype is kF32 or kBF16.
Launch<RoundParams> round_launch(DType out_dtype, int n_rows, const RoundParams& params);

// out[r, c] = x[r, order[c]] for n_rows rows. out_dtype is kF32 or kBF16.
Launch<PermuteParams> permute_launch(DType out_dtype, int n_rows, const PermuteParams& params);

// x[rows[i]] (=|+=) values[i] for n_given rows.
Launch<GiveRowsParams> give_rows_launch(int n_given, const GiveRowsParams& params);

Launch<ScaleLogitsParams> scale_logits_launch(const ScaleLogitsParams& params);

// out = act(gate) * up, or act(gate), for n_rows rows. out_dtype is kF32 or kBF16.
Launch<ActivateParams> activate_launch(Activation kind, DType out_dtype, int n_rows,
                                       const ActivateParams& params);

// out = f(x), the activation with the numbers of a layer, for n_rows rows; rows.up is null.
// out_dtype is kF32 or kBF16.
Launch<XieluParams> xielu_launch(DType out_dtype, int n_rows, const XieluParams& params);

}  // namespace pb::cuda
