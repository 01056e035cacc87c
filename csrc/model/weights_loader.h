// The walk over all weights of a model, behind load_weights().
#pragma once

#include "model/packed_file.h"
#include "model/weights.h"

namespace pb {

// Takes every weight of the model from `tensors`, in a fixed order. Matrices come from `reader`
// unless it is null, else the backend packs them. Unless `writer` is null, the packed matrices are
// written to it. Throws as load_weights() does, and PackedFileError where the reader does.
Weights walk_weights(const ModelConfig& config, const TensorMap& tensors, DType dtype,
                     Backend& backend, const LoadOptions& options, PackedReader* reader,
                     PackedWriter* writer);

}  // namespace pb
