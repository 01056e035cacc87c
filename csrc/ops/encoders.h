// The operations that encoders need besides those of a decoder, and layers with experts beside an
// MLP.
//
// A device that has them also attends both ways, where AttentionLayer says so.
#pragma once

#include "ops/buffer.h"
#include "ops/tensors.h"

namespace pb {

class EncoderOperations {
 public:
  virtual ~EncoderOperations() = default;

  // In a pass: x[r] = norm(x[r]).  x (n_rows, hidden) f32
  virtual void norm_in_place(Buffer& x, int n_rows, const Norm& norm) = 0;
};

}  // namespace pb
