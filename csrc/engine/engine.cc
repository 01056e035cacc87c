#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/context_by_memory.h"
#include "engine/memory_need.h"

namespace pb {
namespace {

const ModelConfig& checked(const ModelConfig& config, const EngineOptions& options,
                           const std::optional<VisionConfig>& vision) {
  config.validate();
  options.validate();
  if (!vision) return config;
  vision->validate();
  if (vision->width() != config.image_columns()) {
    throw Error(ErrorCode::kModelFormat,
                "config.vision has rows of " + std::to_string(vision->width()) +
                    " numbers; the text model takes rows of " +
                    std::to_string(config.image_columns()) +
                    " (hidden_size, and as many for each of deepstack_layers)");
  }
  return config;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message);
}

void check_draft(const StepEntry& entry, bool takes_drafts) {
  const auto n_tokens = static_cast<int64_t>(entry.tokens.size());
  if (!takes_drafts && entry.n_draft != 0) {
    refuse("n_draft of sequence " + std::to_string(entry.seq_id) + " is " +
           std::to_string(entry.n_draft) +
           "; it must be 0: the model's recurrent layers cannot go back to before a token");
  }
  const int64_t most = entry.wants_logits ? n_tokens - 1 : 0;
  if (entry.n_draft < 0 || entry.n_draft > most) {
    refuse("n_draft of sequence " + std::to_string(entry.seq_id) + " is " +
           std::to_string(entry.n_draft) + "; of its " + std::to_string(n_tokens) +
           " tokens it must be 0 to " + std::to_string(most) +
           (entry.wants_logits ? " (the first is no draft token)" : " (it samples nothing)"));
  }
}

void check_targets_and_pooling(const StepEntry& entry) {
  const std::string name = " of sequence " + std::to_string(entry.seq_id);
  if (entry.targets.size() > entry.tokens.size()) {
    refuse("targets" + name + " are " + std::to_string(entry.targets.size()) +
           "; there may be one after each of its " + std::to_string(entry.tokens.size()) +
           " tokens");
  }
  if (entry.n_top < 0 || entry.n_top > kMaxLogprobs) {
    refuse("n_top" + name + " is " + std::to_string(entry.n_top) + "; it must be 0 to " +
           std::to_string(kMaxLogprobs));
  }
  if (entry.wants_logits && entry.wants_scores_or_embedding()) {
    refuse(std::string(entry.targets.empty() ? "pooling" : "targets") + name +
           " cannot go with sampling; give it another sequence, or another step");
  }
}

}  // namespace

Engine::Engine(ModelConfig config, const TensorMap& tensors, const EngineOptions& options,
               std::unique_ptr<Backend> backend, const LoadOptions& load,
               std::optional<VisionConfig> vision)
    : config_(checked(config, options, vision)),
      vision_(std::move(vision)),
      options_(options),
      backend_(std::move(backend)),
      weights_(load_weights(config_, tensors, options.dtype, *backend_, load,
                            vision_ ? &*vision_ : nullptr)),
      n_blocks_(choose_blocks()),
      forward_(config_, weights_, *backend_, forward_limits()),
      tower_(make_tower()),
      layer_groups_(layer_groups_by_memory()),
      model_kv_(make_model_kv()),
      kv_(empty_kv()),
      rope_positions_(config_.has_rope_axes() ? static_cast<size_t>(options.n_parallel) : 0),
      splitter_(options.n_ubatch, !config_.causal, rope_positions_, config_.image_columns()),
      samples_(static_cast<size_t>(options.n_ubatch)),
      states_(static_cast<size_t>(forward_.output_rows()) *
              static_cast<size_t>(forward_.hidden_stride())),
      samplings_(static_cast<size_t>(options.n_parallel)),
      in_step_(static_cast<size_t>(options.n_parallel)),
      n_rejected_(static_cast<size_t>(options.n_parallel)),
      failures_(static_cast<size_t>(options.n_parallel)),
      pooled_(static_cast<size_t>(config_.hidden_size)) {
  options_.n_ctx = n_blocks_ * options.block_size;
  requests_.reserve(samples_.size());
}

int Engine::choose_blocks() {
  if (options_.n_ctx != kAutoContext) {
    return (options_.n_ctx + options_.block_size - 1) / options_.block_size;
  }
  const size_t mapped = weights_.cache.state == "mapped" ? weights_.bytes() : 0;
  return context_by_memory(
      {.memory = backend_->memory_for_kv(mapped),
       .bytes_of =
           [&](int n_blocks) { return pb::kv_bytes(config_, options_, *backend_, n_blocks); },
       .block_size = options_.block_size,
       .n_sequences = options_.n_parallel,
       .n_positions = config_.max_position_embeddings});
}

std::unique_ptr<Tower> Engine::make_tower() {
  if (!vision_) return nullptr;
  return std::make_unique<Tower>(*vision_, *weights_.tower, *backend_,
                                 tower_limits(*vision_, options_, max_positions()),
                                 forward_.heartbeat());
}

double Engine::tower_row_cost() const {
  if (!vision_) return 0.0;
  const double of_patch = weights_.tower->blocks.products_of_row(vision_->layers.moe);
  return of_patch / vision_->layers.n_layers / weights_.products_of_row(config_.moe);
}

Tower& Engine::tower() {
  if (!tower_) refuse("the model has no vision tower, or was loaded without it (vision)");
  return *tower_;
}

int Engine::max_positions() const {
  const int most = std::min(config_.max_position_embeddings, n_blocks_ * options_.block_size);
  return config_.causal ? most : std::min(most, options_.n_ubatch);
}

ForwardLimits Engine::forward_limits() const {
  std::vector<LayerStorage> storages = group_layers(n_blocks_).storages;
  const int state_group = storages.back().group;
  if (storages.back().state_size > 0) storages.pop_back();  // the storage of states
  return {.n_ubatch = options_.n_ubatch,
          .n_positions = max_positions(),
          .n_sequences = options_.n_parallel,
          .block_size = options_.block_size,
          .storages = std::move(storages),
          .state_group = state_group,
          .kv_dtype = options_.kv_dtype};
}

LayerGroups Engine::group_layers(int n_blocks) const {
  return model_layer_groups(config_, options_, *backend_, n_blocks);
}

// Returns the groups for which forward_ was made, with fewer blocks if forward_ has taken memory.
// The layers are not regrouped for fewer blocks: at most n_blocks_ blocks per group take no more
// memory than a single group of n_blocks_ blocks.
LayerGroups Engine::layer_groups_by_memory() {
  LayerGroups made = group_layers(n_blocks_);
  n_blocks_ = std::min(n_blocks_, choose_blocks());
  for (LayerGroup& group : made.groups) {
    if (!group.is_state) group.n_blocks = std::min(group.n_blocks, n_blocks_);
  }
  return made;
}

ModelKv Engine::make_model_kv() {
  ModelKv made;
  for (const LayerStorage& storage : layer_groups_.storages) {
    const LayerGroup& group = layer_groups_.groups[static_cast<size_t>(storage.group)];
    made.storages.push_back(make_storage(config_, options_, *backend_, storage, group.n_blocks));
  }
  made.places = layer_groups_.places;
  return made;
}

size_t Engine::kv_bytes() const {
  size_t bytes = 0;
  for (const KvStorage& storage : model_kv_.storages) bytes += storage.data.bytes();
  return bytes;
}

std::unique_ptr<KvCache> Engine::empty_kv() {
  return std::make_unique<KvCache>(layer_groups_.groups, options_.block_size, options_.n_parallel,
                                   max_positions(), [this](int group, int from, int to) {
                                     for (KvStorage& storage : model_kv_.storages) {
                                       if (storage.group == group)
                                         backend_->copy_block(storage, from, to);
                                     }
                                   });
}

// Rebuilds the KV bookkeeping from scratch instead of repairing it. Keys and values are not
// cleared, because a block is always written before it is read.
void Engine::restart() {
  auto kv = empty_kv();
  backend_->restart();
  kv_ = std::move(kv);
  if (tower_) tower_->drop();
  std::ranges::fill(in_step_, uint8_t{0});
}

int Engine::seq_new(std::string_view name_space) { return with_defaults(kv_->seq_new(name_space)); }

int Engine::seq_new_common() { return with_defaults(kv_->seq_new_common()); }

int Engine::with_defaults(int seq_id) {
  samplings_[static_cast<size_t>(seq_id)] = Sampling{};
  if (!rope_positions_.empty()) rope_positions_[static_cast<size_t>(seq_id)] = {};
  return seq_id;
}

void Engine::seq_copy(int src, int dst, int n_tokens) { kv_->seq_copy(src, dst, n_tokens); }

int Engine::seq_copyable(int src, int n_tokens) const { return kv_->seq_copyable(src, n_tokens); }

void Engine::seq_remove(int seq_id, int start, int end) { kv_->seq_remove(seq_id, start, end); }

int Engine::seq_length(int seq_id) const { return kv_->seq_length(seq_id); }

int Engine::seq_exclusive_blocks(int seq_id) const { return kv_->seq_exclusive_blocks(seq_id); }

int Engine::seq_match(int seq_id, std::span<const int32_t> tokens) {
  check_tokens(tokens, config_.takes_images);
  check_sequence(seq_id);
  if (!config_.causal) return 0;  // the KV of a prefix depends on later tokens
  return kv_->seq_match(seq_id, tokens);
}

void Engine::seq_sampling(int seq_id, std::optional<Sampling> sampling) {
  check_sequence(seq_id);
  Sampling chosen = sampling ? std::move(*sampling) : Sampling{};
  chosen.validate(config_.vocab_size);
  samplings_[static_cast<size_t>(seq_id)] = std::move(chosen);
}

void Engine::seq_positions(int seq_id, std::span<const int32_t> positions) {
  check_sequence(seq_id);
  if (rope_positions_.empty()) {
    refuse("positions are given; the model (" + config_.architecture + ") has one position a row");
  }
  if (positions.size() % kRopeAxes != 0) {
    refuse("positions are " + std::to_string(positions.size()) + " numbers; they must be " +
           std::to_string(kRopeAxes) + " a row");
  }
  const int end = max_sequence_length();
  int32_t next = 0;
  for (const int32_t position : positions) {
    if (position < 0 || position >= end) {
      refuse("positions have " + std::to_string(position) + "; they must be 0 to " +
             std::to_string(end - 1));
    }
    next = std::max(next, position + 1);
  }
  const auto n_rows = static_cast<int32_t>(positions.size() / kRopeAxes);
  if (next > n_rows) {
    refuse("positions go up to " + std::to_string(next - 1) + " in " + std::to_string(n_rows) +
           " rows; the greatest must be less than the number of rows");
  }
  rope_positions_[static_cast<size_t>(seq_id)] = {.given = {positions.begin(), positions.end()},
                                                  .offset = next - n_rows};
}

void Engine::check_sequence(int seq_id) const {
  if (!kv_->seq_exists(seq_id)) {
    refuse("seq_id is " + std::to_string(seq_id) +
           "; it must be a sequence that seq_new gave and seq_remove has not freed");
  }
}

void Engine::check_tokens(std::span<const int32_t> tokens, bool takes_images,
                          const char* field) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= kFirstImageId && takes_images) continue;
    if (tokens[i] < 0 || tokens[i] >= config_.vocab_size) {
      refuse(std::string(field) + "[" + std::to_string(i) + "] is " + std::to_string(tokens[i]) +
             "; it must be a token id from 0 to " + std::to_string(config_.vocab_size - 1));
    }
  }
}

// Throws unless the images cover exactly the tokens from kFirstImageId on.
void Engine::check_images(const StepEntry& entry) const {
  const std::string of = " of sequence " + std::to_string(entry.seq_id);
  const int n_tokens = static_cast<int>(entry.tokens.size());
  int next = 0;  // the first token after the images so far
  const auto check_text = [&](int end) {
    for (int i = next; i < end; ++i) {
      if (entry.tokens[static_cast<size_t>(i)] < kFirstImageId) continue;
      refuse("tokens[" + std::to_string(i) + "]" + of + " is the id of an image row, " +
             std::to_string(entry.tokens[static_cast<size_t>(i)]) + "; its row must be in images");
    }
  };
  for (const EntryImage& image : entry.images) {
    if (!config_.takes_images) {
      refuse("images" + of + " are given; the model (" + config_.architecture + ") takes none");
    }
    if (image.offset < next || image.n_rows < 1 || image.n_rows > n_tokens - image.offset) {
      refuse("images" + of + " have " + std::to_string(image.n_rows) + " rows from token " +
             std::to_string(image.offset) + " on; they must follow each other within the " +
             std::to_string(n_tokens) + " tokens");
    }
    check_text(image.offset);
    next = image.offset + image.n_rows;
    for (int i = image.offset; i < next; ++i) {
      if (entry.tokens[static_cast<size_t>(i)] >= kFirstImageId) continue;
      refuse("tokens[" + std::to_string(i) + "]" + of + " is " +
             std::to_string(entry.tokens[static_cast<size_t>(i)]) +
             ", where images have a row; it must be " + std::to_string(kFirstImageId) +
             " or greater");
    }
  }
  check_text(n_tokens);
}

// Throws unless the entry suits an encoder, which computes a text in one entry and only pools.
void Engine::check_whole(const StepEntry& entry) const {
  const std::string name = "sequence " + std::to_string(entry.seq_id);
  if (entry.wants_logits || !entry.targets.empty() || entry.pooling == Pooling::kNone) {
    refuse(name + " asks for no pooling, or for more; an encoder (" + config_.architecture +
           ") can only pool: it neither generates nor scores");
  }
  if (kv_->seq_length(entry.seq_id) > 0) {
    refuse(name + " has tokens already; an encoder (" + config_.architecture +
           ") takes a text as a whole, in a new sequence");
  }
}

void Engine::check_entries(std::span<const StepEntry> entries) {
  if (entries.empty()) refuse("the step has no entries; it must have one or more");
  for (const StepEntry& entry : entries) {
    check_sequence(entry.seq_id);
    if (entry.tokens.empty()) {
      refuse("the tokens of sequence " + std::to_string(entry.seq_id) +
             " are empty; there must be one or more");
    }
    check_tokens(entry.tokens, config_.takes_images);
    check_images(entry);
    check_draft(entry, takes_drafts());
    if (!config_.causal) check_whole(entry);
    check_targets_and_pooling(entry);
    check_tokens(entry.targets, false, "targets");
    const size_t length = static_cast<size_t>(kv_->seq_length(entry.seq_id)) + entry.tokens.size();
    if (length > static_cast<size_t>(max_sequence_length())) {
      throw Error(ErrorCode::kRequestTooLong,
                  "sequence " + std::to_string(entry.seq_id) + " would have " +
                      std::to_string(length) + " tokens; at most " +
                      std::to_string(max_sequence_length()) +
                      " fit (the smaller of the model's positions and n_ctx" +
                      (config_.causal ? ")" : ", and for an encoder n_ubatch)"));
    }
  }
  // Uses in_step_ only after all ids are checked, so that it is written at existing ids only and is
  // always reset.
  int duplicate = -1;
  for (const StepEntry& entry : entries) {
    if (in_step_[static_cast<size_t>(entry.seq_id)]++ == 1) duplicate = entry.seq_id;
  }
  for (const StepEntry& entry : entries) in_step_[static_cast<size_t>(entry.seq_id)] = 0;
  if (duplicate >= 0) {
    refuse("sequence " + std::to_string(duplicate) +
           " is named twice in one step; it must be named once, with all of its tokens");
  }
}

}  // namespace pb
