// The engine: weights, KV cache and a device behind a handful of calls.
//
// Every call checks all of its arguments before it changes anything; a call that throws has left
// every sequence as it was. Not thread-safe: GuardedEngine serialises the calls of several threads.
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
#include "model/weights.h"
#include "ops/backend.h"
#include "sampling/sample.h"
#include "sampling/token_masks.h"

namespace pb {

// Rows of a step for which layers with a sliding window have KV beside all windows, whatever
// n_ubatch is: passes may be small and steps large.
inline constexpr int kStepRows = 512;

// An n_ctx that is chosen by the memory there is.
inline constexpr int kAutoContext = -1;

struct EngineOptions {
  DType dtype = DType::kF32;     // of matrices of tensors that do not keep their own
  DType kv_dtype = DType::kF32;  // of keys and values; all but int4
  int n_ctx = 8192;              // KV capacity in tokens, in whole blocks; or kAutoContext
  int n_parallel = 8;            // most sequences at once
  int n_ubatch = 512;            // rows of a physical pass
  int block_size = 32;           // positions of a KV block; a divisor of kAttentionSegment

  // Throws kConfig naming the field, its value and its range.
  void validate() const;
};

struct EngineStatistics {
  int64_t forward_passes = 0;   // calls that computed: each is one, whatever its ubatches
  int64_t computed_tokens = 0;  // rows that went through the layers
  int64_t logits_rows = 0;      // rows that went through the output head
  int64_t sampled_tokens = 0;   // tokens sampled
  int64_t draft_tokens = 0;     // rows among computed_tokens that were draft tokens
  int64_t accepted_tokens = 0;  // those of them that were sampled too, and stayed
};

class Engine {
 public:
  // Packs the weights. Throws kConfig, kModelFormat, kOutOfMemory, std::bad_alloc, or what
  // load.progress throws.
  Engine(ModelConfig config, const TensorMap& tensors, const EngineOptions& options,
         std::unique_ptr<Backend> backend, const LoadOptions& load = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // -- sequences. Every call throws kInvalidRequest for an id that is unknown or freed

  // Takes and returns the lowest free id. Throws kNoFreeSequence. Prefixes are shared within a name
  // space only.
  int seq_new(std::string_view name_space);
  // Makes dst, which is empty, start with src's first n_tokens. dst keeps its own sampling.
  void seq_copy(int src, int dst, int n_tokens);
  // How many of src's first n_tokens another sequence can be made to start with (KvCache).
  int seq_copyable(int src, int n_tokens) const;
  // Drops KV [start, end); end is the length (or -1, the same). All of it: the sequence is freed.
  void seq_remove(int seq_id, int start, int end);
  int seq_length(int seq_id) const;
  // The number of KV blocks that this sequence alone holds: removing it makes them free or cached.
  int seq_exclusive_blocks(int seq_id) const;
  // Attaches the longest cached prefix of `tokens` to an empty sequence. Returns the number of
  // tokens attached.
  int seq_match(int seq_id, std::span<const int32_t> tokens);
  // Sets how the sequence samples its tokens; nullopt = greedy, the default.
  void seq_sampling(int seq_id, std::optional<Sampling> sampling);
  // Drops every sequence and all cached KV, as if the engine had just been made; weights and
  // statistics stay. For a supervisor, after a call that failed unexpectedly and may have left the
  // bookkeeping inconsistent. Throws std::bad_alloc, or kEngine where the device will not compute
  // again, and then nothing has changed.
  void restart();

  // -- calls that compute. All throw kInvalidRequest, kRequestTooLong or kKvCacheFull, and kEngine
  // where the device fails

  // One forward pass over ragged rows: appends every entry's tokens and samples a token for each
  // that wants logits, in the order of the entries. A sequence whose logits are not finite has a
  // Sample with `failure` set; its tokens are appended like all others'. Accepted draft
  // tokens are appended, and a token is sampled after each of them; a failure ends the sequence's
  // samples. Log-probabilities and embeddings are written to the entries' `logprobs` and
  // `embedding`; an entry without an answer has a Sample with `failure` after all that are sampled.
  // masks: holds the entries' masks, and is waited for before anything is sampled; null where no
  // entry has any.
  std::vector<StepSample> step(std::span<const StepEntry> entries,
                               const TokenMasks* masks = nullptr);

  // Appends `tokens`. logits: (vocab_size) of the last row, or null. Throws kEngine where they are
  // asked for and not finite.
  void prefill_chunk(int seq_id, std::span<const int32_t> tokens, float* logits);

  // Appends one token to each of n sequences, in one forward pass. next_tokens (n): the sampled
  // ones. logits (n, vocab_size), or null. Throws kEngine where a token cannot be sampled.
  void decode_batch(std::span<const int32_t> seq_ids, std::span<const int32_t> tokens,
                    int32_t* next_tokens, float* logits);

  // Appends `tokens` and pools their states after the final norm. embedding: (hidden_size).
  void embed(int seq_id, std::span<const int32_t> tokens, Pooling pooling, float* embedding);

  // -- facts

  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }
  const KvCache& kv() const { return *kv_; }
  const Backend& backend() const { return *backend_; }
  const EngineStatistics& statistics() const { return statistics_; }
  // True if steps may have drafts. A recurrent layer cannot return to its state before a token.
  bool takes_drafts() const { return config_.recurrent_layers.empty(); }
  int max_sequence_length() const { return kv_->max_length(); }
  size_t weight_bytes() const { return weights_.bytes(); }
  std::vector<DType> weight_dtypes() const { return weights_.dtypes(); }
  const CacheUse& weights_cache() const { return weights_.cache; }
  size_t kv_bytes() const;
  // How the layers share KV blocks.
  const LayerGroups& layer_groups() const { return layer_groups_; }
  // Beats while a call computes: with every layer, with every group of rows that goes through the
  // head, when their tokens are sampled, and as the device gets on where it is waited for.
  std::shared_ptr<const Heartbeat> heartbeat() const { return forward_.heartbeat(); }

  // Throws kEngine naming the first inconsistency.
  void check_integrity() const { kv_->check_integrity(); }

 private:
  // Blocks of KV: what n_ctx says, or where it is kAutoContext, what there is memory for now.
  int choose_blocks();
  int max_positions() const;  // of a sequence
  ForwardLimits forward_limits() const;
  LayerGroups group_layers(int n_blocks) const;
  LayerGroups layer_groups_by_memory();
  KvStorage make_kv(const LayerStorage& storage, int n_blocks);
  ModelKv make_model_kv();
  std::unique_ptr<KvCache> empty_kv();
  void check_entries(std::span<const StepEntry> entries);
  void check_whole(const StepEntry& entry) const;
  void check_tokens(std::span<const int32_t> tokens, const char* field = "tokens") const;
  void check_sequence(int seq_id) const;

  // The use that a call makes of the logits of its wanted rows.
  struct LogitsUse {
    bool samples = false;               // makes samples_ of them
    float* out = nullptr;               // (wanted rows, vocab_size), or null
    const TokenMasks* masks = nullptr;  // waited for before anything is sampled
  };

  // The one path of all calls that compute: checks, reserves, computes ubatch by ubatch, calls
  // on_tile() after each, commits. If on_tile throws, nothing is appended.
  template <typename OnTile>
  void run(std::span<const StepEntry> entries, LogitsUse use, OnTile on_tile);

  // Returns the sampling or scoring request of each wanted row of the ubatch.
  std::span<const SampleRequest> requests_of(std::span<const StepEntry> entries);

  // Computes the logits of the wanted rows of the planned ubatch, and samples and copies them as
  // `use` says.
  void compute_logits(size_t n_rows, LogitsUse use);

  // Calls on_sample(entry index, row's offset in the entry, Sample) for the samples of the ubatch,
  // in order. Samples after a rejected draft token are left out.
  template <typename OnSample>
  void for_samples(std::span<const StepEntry> entries, OnSample on_sample);

  // Adds the ubatch's rows to the vectors of their entries. on_pooled(entry index) once one is
  // there.
  template <typename OnPooled>
  void pool(std::span<const StepEntry> entries, OnPooled on_pooled);

  ModelConfig config_;
  EngineOptions options_;
  std::unique_ptr<Backend> backend_;
  Weights weights_;
  int n_blocks_;  // of KV; first, the most that there can be once passes have their memory, too
  Forward forward_;
  LayerGroups layer_groups_;
  ModelKv model_kv_;
  std::unique_ptr<KvCache> kv_;
  UbatchSplitter splitter_;
  std::vector<SampleRequest> requests_;  // (wanted rows of the ubatch)
  std::vector<Sample> samples_;          // (n_ubatch), by wanted row of the ubatch
  std::vector<float> states_;          // (output_rows(), hidden_stride): pooled rows of the ubatch
  std::vector<Sampling> samplings_;    // (n_parallel), by seq_id
  std::vector<uint8_t> in_step_;       // (n_parallel): zero between calls
  std::vector<int32_t> n_rejected_;    // (n_parallel), by entry: its last tokens that are given up
  std::vector<const char*> failures_;  // (n_parallel), by entry: why it has no scores or embedding
  std::vector<double> pooled_;  // (hidden): the sum of the rows so far of the entry in progress
  EngineStatistics statistics_;
};

}  // namespace pb
