// The engine combines weights, KV cache and device behind a small interface.
//
// Every call checks all its arguments before it changes anything; a call that throws leaves every
// sequence unchanged. The class is not thread-safe: GuardedEngine serialises the calls of several
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/heartbeat.h"
#include "config/config.h"
#include "engine/step.h"
#include "engine/ubatch_splitter.h"
#include "kv/kv_cache.h"
#include "kv/layer_groups.h"
#include "model/forward.h"
#include "model/tower.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "sampling/sample.h"
#include "sampling/token_masks.h"

namespace pb {

// The minimum number of rows of a step for which layers with a sliding window have KV blocks in
// addition to the windows of all sequences. A step may have this many rows even if n_ubatch is
// smaller.
inline constexpr int kStepRows = 512;

// Value of n_ctx that chooses the KV capacity from the available memory.
inline constexpr int kAutoContext = -1;

struct EngineOptions {
  DType dtype = DType::kF32;     // dtype of matrices from tensors without keeps_dtype
  DType kv_dtype = DType::kF32;  // dtype of keys and values; int4 is not supported
  // KV capacity in tokens, rounded up to whole blocks; or kAutoContext.
  int n_ctx = 8192;
  int n_parallel = 8;   // maximum number of sequences
  int n_ubatch = 512;   // maximum rows of a ubatch
  int block_size = 32;  // positions of a KV block; must divide kAttentionSegment

  // Throws kConfig, naming the field, its value and its range.
  void validate() const;
};

struct EngineStatistics {
  int64_t forward_passes = 0;   // compute calls; a call counts once, however many ubatches it has
  int64_t computed_tokens = 0;  // rows computed by the layers
  int64_t logits_rows = 0;      // rows computed by the output head
  int64_t sampled_tokens = 0;   // tokens sampled
  int64_t draft_tokens = 0;     // draft tokens among computed_tokens
  int64_t accepted_tokens = 0;  // draft tokens that equalled the sampled token and were appended
};

class Engine {
 public:
  // Packs the weights. Throws kConfig, kModelFormat, kOutOfMemory, std::bad_alloc, or an exception
  // of load.progress.
  // `vision` is the tower of a model that takes images.
  Engine(ModelConfig config, const TensorMap& tensors, const EngineOptions& options,
         std::unique_ptr<Backend> backend, const LoadOptions& load = {},
         std::optional<VisionConfig> vision = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // -- sequences: every call throws kInvalidRequest if no sequence has the id

  // Takes the lowest free sequence id and returns it. Throws kNoFreeSequence if all are in use.
  // Sequences share prefixes only within the same name space, and those of common sequences with
  // all.
  int seq_new(std::string_view name_space);
  int seq_new_common();
  // Makes the empty sequence dst start with src's first n_tokens tokens. dst keeps its own sampling
  // parameters.
  void seq_copy(int src, int dst, int n_tokens);
  // Returns how many of src's first n_tokens tokens another sequence can start with (see KvCache).
  int seq_copyable(int src, int n_tokens) const;
  // Removes the tokens [start, end) from a sequence. `end` must be the length or -1, which means
  // the length. Removing all tokens frees the sequence.
  void seq_remove(int seq_id, int start, int end);
  int seq_length(int seq_id) const;
  // Returns the number of KV blocks that only this sequence holds. These blocks become free or
  // cached when the sequence is removed.
  int seq_exclusive_blocks(int seq_id) const;
  // Attaches the longest cached prefix of `tokens` to an empty sequence. Returns the number of
  // tokens attached.
  int seq_match(int seq_id, std::span<const int32_t> tokens);
  // Sets the sampling parameters of a sequence; nullopt means greedy sampling, the default.
  void seq_sampling(int seq_id, std::optional<Sampling> sampling);
  // Sets the rope positions of the first rows of a sequence, (n, kRopeAxes). Each later row has the
  // same position on all axes: its index plus a constant, so that the first of them follows the
  // greatest given one. seq_new() sets none: all positions are the index of the row. Throws
  // kInvalidRequest if the model has no ropes with axes, or for a position outside the model's.
  void seq_positions(int seq_id, std::span<const int32_t> positions);
  // Removes every sequence and all cached KV, as if the engine had just been made; weights and
  // statistics stay. A supervisor calls this after an unexpected failure that may have left the KV
  // bookkeeping inconsistent. Throws std::bad_alloc, or kEngine if the device cannot compute again,
  // and then changes nothing.
  void restart();

  // -- calls that compute: all throw kInvalidRequest, kRequestTooLong or kKvCacheFull, and kEngine
  // if the device fails

  // Computes one forward pass over the ragged rows of all entries. Appends every entry's tokens and
  // samples a token for each entry that wants logits. Samples are returned in the order of the
  // entries.
  //
  // Accepted draft tokens are appended, and a token is sampled after each of them. If the logits of
  // a sequence are not finite, its Sample has `failure` set, which ends the entry's samples; its
  // tokens are appended nevertheless. Log-probabilities and embeddings are written to `logprobs`
  // and `embedding` of the entries. An entry whose scores or embedding cannot be computed gets a
  // Sample with `failure`, after the samples of all entries.
  //
  // `masks` provides the entries' masks; the step waits for it before sampling. It is null if no
  // entry has masks.
  std::vector<StepSample> step(std::span<const StepEntry> entries,
                               const TokenMasks* masks = nullptr);

  // Appends `tokens`. `logits` (vocab_size) receives the logits of the last row, unless it is null.
  // Throws kEngine if these logits are not finite.
  void prefill_chunk(int seq_id, std::span<const int32_t> tokens, float* logits);

  // Appends one token to each of n sequences in one forward pass. next_tokens (n) receives the
  // sampled tokens, and logits (n, vocab_size) the logits, unless it is null. Throws kEngine if a
  // token cannot be sampled.
  void decode_batch(std::span<const int32_t> seq_ids, std::span<const int32_t> tokens,
                    int32_t* next_tokens, float* logits);

  // Appends `tokens` and pools their hidden states after the final norm into embedding
  // (hidden_size).
  void embed(int seq_id, std::span<const int32_t> tokens, Pooling pooling, float* embedding);

  // Returns the vision tower. Throws kInvalidRequest if the model has none.
  Tower& tower();

  // -- facts

  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }
  const KvCache& kv() const { return *kv_; }
  const Backend& backend() const { return *backend_; }
  const EngineStatistics& statistics() const { return statistics_; }
  // Returns true if steps may have draft tokens. Recurrent layers do not support them, because
  // their state cannot be rolled back to an earlier token.
  bool takes_drafts() const { return config_.recurrent_layers.empty(); }
  int max_sequence_length() const { return kv_->max_length(); }
  // Returns the numbers of a row of an image, and the most patches that the tower computes at once;
  // 0 without a tower.
  int image_width() const { return tower_ ? tower_->width() : 0; }
  int tower_rows() const { return tower_ ? tower_->max_rows() : 0; }
  int tower_layers() const { return vision_ ? vision_->layers.n_layers : 0; }
  // Returns the multiply-adds of a patch in a layer of the tower, divided by those of a token in
  // all layers of the text model; 0 without a tower.
  double tower_row_cost() const;
  size_t weight_bytes() const { return weights_.bytes(); }
  std::vector<DType> weight_dtypes() const { return weights_.dtypes(); }
  const CacheUse& weights_cache() const { return weights_.cache; }
  size_t kv_bytes() const;
  // Returns how the layers are divided into groups that share KV blocks.
  const LayerGroups& layer_groups() const { return layer_groups_; }
  // The heartbeat beats while a call computes: after every layer, after every group of rows of the
  // output head, after sampling, and whenever a device that is waited for makes progress.
  std::shared_ptr<const Heartbeat> heartbeat() const { return forward_.heartbeat(); }

  // Throws kEngine, naming the first inconsistency.
  void check_integrity() const { kv_->check_integrity(); }

 private:
  // Returns the number of KV blocks: according to n_ctx, or to the memory that is available now if
  // n_ctx is kAutoContext.
  int choose_blocks();
  std::unique_ptr<Tower> make_tower();
  int max_positions() const;  // maximum positions of a sequence
  ForwardLimits forward_limits() const;
  LayerGroups group_layers(int n_blocks) const;
  LayerGroups layer_groups_by_memory();
  ModelKv make_model_kv();
  std::unique_ptr<KvCache> empty_kv();
  int with_defaults(int seq_id);  // sets a new sequence's parameters; returns its id
  void check_entries(std::span<const StepEntry> entries);
  void check_whole(const StepEntry& entry) const;
  void check_tokens(std::span<const int32_t> tokens, bool takes_images,
                    const char* field = "tokens") const;
  void check_images(const StepEntry& entry) const;
  void check_sequence(int seq_id) const;

  // How a call uses the logits of the wanted rows.
  struct LogitsUse {
    bool samples = false;  // true: sample into samples_
    // Receives the logits (wanted rows, vocab_size), unless null.
    float* out = nullptr;
    const TokenMasks* masks = nullptr;  // waited for before sampling
  };

  // Implements all calls that compute: checks the entries, reserves KV, computes ubatch by ubatch,
  // calls on_tile() after each ubatch, and commits. If on_tile() throws, nothing is appended.
  template <typename OnTile>
  void run(std::span<const StepEntry> entries, LogitsUse use, OnTile on_tile);

  // Returns the sampling or scoring request of each wanted row of the ubatch.
  std::span<const SampleRequest> requests_of(std::span<const StepEntry> entries);

  // Computes the logits of the wanted rows of the planned ubatch, and samples from or copies them
  // as `use` specifies.
  void compute_logits(size_t n_rows, LogitsUse use);

  // Calls on_sample(entry index, offset of the row in the entry, Sample) for the samples of the
  // ubatch, in order. Samples after a rejected draft token are omitted.
  template <typename OnSample>
  void for_samples(std::span<const StepEntry> entries, OnSample on_sample);

  // Adds the hidden states of the ubatch's pooled rows to the embeddings of their entries, and
  // calls on_pooled(entry index) when an embedding is complete.
  template <typename OnPooled>
  void pool(std::span<const StepEntry> entries, OnPooled on_pooled);

  ModelConfig config_;
  std::optional<VisionConfig> vision_;
  EngineOptions options_;
  std::unique_ptr<Backend> backend_;
  Weights weights_;
  int n_blocks_;  // KV blocks; before the passes have allocated their memory, an upper bound
  Forward forward_;
  std::unique_ptr<Tower> tower_;  // null = none
  LayerGroups layer_groups_;
  ModelKv model_kv_;
  std::unique_ptr<KvCache> kv_;
  std::vector<RopePositions> rope_positions_;  // (n_parallel), or empty: indexed by seq_id
  UbatchSplitter splitter_;
  std::vector<SampleRequest> requests_;  // parallel to the wanted rows of the ubatch
  std::vector<Sample> samples_;          // (n_ubatch): parallel to the wanted rows of the ubatch
  // Hidden states of pooled rows (output_rows(), hidden_stride).
  std::vector<float> states_;
  std::vector<Sampling> samplings_;    // (n_parallel): indexed by seq_id
  std::vector<uint8_t> in_step_;       // (n_parallel): indexed by seq_id; zero between calls
  std::vector<int32_t> n_rejected_;    // (n_parallel): rejected last tokens of each entry
  std::vector<const char*> failures_;  // (n_parallel): why an entry has no scores or embedding
  std::vector<double> pooled_;  // (hidden): sum of the states of the entry that is being pooled
  EngineStatistics statistics_;
};

}  // namespace pb
