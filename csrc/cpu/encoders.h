// What encoders need besides the operations of a decoder, on the CPU.
#pragma once

#include "ops/encoders.h"

namespace pb::cpu {

class CpuBackend;

class CpuEncoders final : public EncoderOperations {
 public:
  // Computes with the threads and kernels of `backend`, whose part this is.
  explicit CpuEncoders(CpuBackend& backend) : backend_(backend) {}

  void norm_in_place(Buffer& x, int n_rows, const Norm& norm) override;

 private:
  CpuBackend& backend_;
};

}  // namespace pb::cpu
