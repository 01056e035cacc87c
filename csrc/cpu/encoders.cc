#include "cpu/encoders.h"

#include "cpu/cpu_backend.h"

namespace pb::cpu {

void CpuEncoders::norm_in_place(Buffer& x, int n_rows, const Norm& norm) {
  const int hidden = norm.weight.size;
  const NormArgs args{norm.weight.values.as<float>(), norm.bias.values.as<float>(), norm.eps,
                      hidden};
  const Kernels& kernels = backend_.kernels_;
  const auto kernel = norm.kind == NormKind::kRms ? kernels.rms_norm : kernels.layer_norm;
  const int64_t work = int64_t{2} * n_rows * hidden;
  backend_.for_rows(n_rows, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = x.as<float>() + i * hidden;
      kernel(args, row, {RowFormat::kF32, row, nullptr});
    }
  });
}

}  // namespace pb::cpu
