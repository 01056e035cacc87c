#include "model/weights.h"

#include <string>

#include "base/error.h"
#include "model/packed_file.h"
#include "model/weights_cache.h"
#include "model/weights_loader.h"

namespace pb {
namespace {

// Throws kConfig if the backend does not support the model's head sizes in attention or in
// GatedDeltaNet.
void check_heads(const ModelConfig& config, Backend& backend) {
  const int key_dim = config.gated_delta_net.key_dim;
  if (!config.recurrent_layers.empty() && key_dim > backend.recurrent().max_key_dim()) {
    throw Error(ErrorCode::kConfig, "config.gated_delta_net.key_dim is " + std::to_string(key_dim) +
                                        " (" + config.architecture + "); device '" +
                                        backend.device() + "' takes sizes up to " +
                                        std::to_string(backend.recurrent().max_key_dim()) +
                                        ": use device='cpu'");
  }
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (config.is_recurrent(layer)) continue;
    const int size = config.shape(layer).head_dim;
    const bool is_odd = size % 2 != 0 && !backend.takes_odd_heads();
    if (size <= backend.max_head_dim() && !is_odd) continue;
    const std::string field = config.layer_shapes.empty() ? "head_dim" : "layer_shapes.head_dim";
    throw Error(ErrorCode::kConfig, "config." + field + " is " + std::to_string(size) + " (" +
                                        config.architecture + "); device '" + backend.device() +
                                        "' takes " + (backend.takes_odd_heads() ? "" : "even ") +
                                        "sizes up to " + std::to_string(backend.max_head_dim()) +
                                        ": use device='cpu'");
  }
}

}  // namespace

Weights load_weights(const ModelConfig& config, const TensorMap& tensors, DType dtype,
                     Backend& backend, const LoadOptions& options, const VisionConfig* vision) {
  check_heads(config, backend);
  if (vision != nullptr) check_heads(vision->layers, backend);
  const auto load = [&](PackedReader* reader, PackedWriter* writer) {
    return walk_weights(config, vision, tensors, dtype, backend, options, reader, writer);
  };
  if (options.cache.directory.empty()) return load(nullptr, nullptr);

  const std::string key = cache_key(options.cache, tensors, dtype, backend);
  const std::string path = cache_path(options.cache, key);
  std::string problem;
  try {
    if (auto reader = PackedReader::open(path, key, backend.n_threads())) {
      Weights weights = load(&*reader, nullptr);
      reader->expect_end();
      weights.cache.state = reader->is_mapped() ? "mapped" : "copied";
      return weights;
    }
  } catch (const PackedFileError& error) {
    problem = error.problem;
  }
  PackedWriter writer(path, key, packed_bytes(tensors, dtype, backend));
  Weights weights = load(nullptr, &writer);
  writer.commit();
  weights.cache.state = writer.problem().empty() ? "written" : "failed";
  weights.cache.problem = writer.problem().empty() ? problem : writer.problem();
  return weights;
}

}  // namespace pb
