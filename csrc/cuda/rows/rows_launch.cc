#include "cuda/rows/rows_launch.h"

namespace pb::cuda {
namespace {

Grid activate_grid(int n_rows, int64_t row_stride) {
  constexpr auto kPerBlock = static_cast<int64_t>(kActivateThreads) * kActivatedPerThread;
  const auto blocks = static_cast<unsigned>((row_stride + kPerBlock - 1) / kPerBlock);
  return {.x = static_cast<unsigned>(n_rows), .y = blocks};
}

}  // namespace

Launch<NormParams> norm_launch(NormKind kind, DType out_dtype, int n_rows,
                               const NormParams& params) {
  const bool is_f32 = out_dtype == DType::kF32;
  const char* kernel = kind == NormKind::kRms ? (is_f32 ? "rms_norm_f32" : "rms_norm_bf16")
                                              : (is_f32 ? "layer_norm_f32" : "layer_norm_bf16");
  return {kernel, {.x = static_cast<unsigned>(n_rows)}, kNormThreads, 0, params};
}

Launch<NormRowsParams> norm_rows_launch(int n_rows, const NormRowsParams& params) {
  const char* kernel = params.scale == 1.0f ? "rms_norm_rows" : "rms_norm_rows_scaled";
  return {kernel, {.x = static_cast<unsigned>(n_rows)}, kNormThreads, 0, params};
}

Launch<RoundParams> round_launch(DType out_dtype, int n_rows, const RoundParams& params) {
  const char* kernel = out_dtype == DType::kF32 ? "round_rows_f32" : "round_rows_bf16";
  return {kernel, {.x = static_cast<unsigned>(n_rows)}, kRoundThreads, 0, params};
}

Launch<PermuteParams> permute_launch(DType out_dtype, int n_rows, const PermuteParams& params) {
  const char* kernel = out_dtype == DType::kF32 ? "permute_rows_f32" : "permute_rows_bf16";
  return {kernel, {.x = static_cast<unsigned>(n_rows)}, kRoundThreads, 0, params};
}

Launch<GiveRowsParams> give_rows_launch(int n_given, const GiveRowsParams& params) {
  return {"give_rows", {.x = static_cast<unsigned>(n_given)}, kGiveRowsThreads, 0, params};
}

Launch<ScaleLogitsParams> scale_logits_launch(const ScaleLogitsParams& params) {
  const int64_t blocks = (params.n + kScaleLogitsThreads - 1) / kScaleLogitsThreads;
  return {"scale_logits", {.x = static_cast<unsigned>(blocks)}, kScaleLogitsThreads, 0, params};
}

Launch<ActivateParams> activate_launch(Activation kind, DType out_dtype, int n_rows,
                                       const ActivateParams& params) {
  const bool is_f32 = out_dtype == DType::kF32;
  const char* kernel = nullptr;
  switch (kind) {
    case Activation::kSilu:
      kernel = is_f32 ? "silu_f32" : "silu_bf16";
      break;
    case Activation::kGeluTanh:
      kernel = is_f32 ? "gelu_tanh_f32" : "gelu_tanh_bf16";
      break;
    case Activation::kGelu:
      kernel = is_f32 ? "gelu_f32" : "gelu_bf16";
      break;
    case Activation::kReluSquared:
      kernel = is_f32 ? "relu_squared_f32" : "relu_squared_bf16";
      break;
    case Activation::kXielu:  // xielu_launch has the numbers of the layer
      break;
    case Activation::kSigmoid:
      kernel = is_f32 ? "sigmoid_f32" : "sigmoid_bf16";
      break;
  }
  return {kernel, activate_grid(n_rows, params.row_stride), kActivateThreads, 0, params};
}

Launch<XieluParams> xielu_launch(DType out_dtype, int n_rows, const XieluParams& params) {
  return {out_dtype == DType::kF32 ? "xielu_f32" : "xielu_bf16",
          activate_grid(n_rows, params.rows.row_stride), kActivateThreads, 0, params};
}

}  // namespace pb::cuda
