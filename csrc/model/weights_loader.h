// Loads all weights of a model in a fixed order; load_weights() is built on it.
#pragma once

#include "model/packed_file.h"
#include "model/weights.h"

namespace pb {

// Loads every weight of the model from `tensors` in a fixed order. If `reader` is not null, it
// provides the packed matrices; otherwise the backend packs them. If `writer` is not null, the
// packed matrices are written to it. `vision` is null if the model has no vision tower. Throws as
// load_weights() does, and PackedFileError if the reader does.
Weights walk_weights(const ModelConfig& config, const VisionConfig* vision,
                     const TensorMap& tensors, DType dtype, Backend& backend,
                     const LoadOptions& options, PackedReader* reader, PackedWriter* writer);

}  // namespace pb
