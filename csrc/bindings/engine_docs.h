// The docstrings of _core.Engine.
#pragma once

namespace pb::bindings::docs {

inline constexpr const char* kEngine =
    R"(The engine: weights, KV cache, device and sampler.

Calls from several threads run one after the other; a waiting one does not hold the
GIL. Every call checks all of its arguments before it changes anything, and one that
raises has left every sequence as it was. An id that is unknown or freed, and a token
outside the vocabulary, is an InvalidRequestError; any call after close(), or in a
forked child, is an EngineError.

`tokens` and `seq_ids` are one-dimensional arrays of any integer type, or sequences of
whole numbers.)";

inline constexpr const char* kInit = R"(Pack a model's weights for the device.

config: the fields of pybatcher.loading.ModelConfig by name.
tensors: canonical name -> (array, "f32" | "bf16" | "f16"); bf16 arrays are uint16. Matrices
    also as "int8" | "int4" | "q4_k" | "q5_k" | "q6_k" | "mxfp4": rows of GGUF's blocks (Q8_0,
    Q4_0, ...), uint8. And as (function, type, rows, columns): it is called when the matrix is
    packed, and what it returns then dropped. Behind these the input of each column, int32, where
    columns do not lie as inputs do. The arrays are not kept: the packed weights are a copy.
dtype: "f32" | "bf16" | "int8" | "int4". kv_dtype: "f32" | "bf16" | "f16" | "int8".
device: "cpu" | "cuda".
n_ctx, n_parallel, n_ubatch, block_size: as in pybatcher.EngineConfig.
n_threads: 0 = the cores this process may use.
kept: names of matrices that keep their element type, f16 as bf16, where the device can mix
    types; others become `dtype`.
mapped: names of tensors that lie in a mapped file; their pages are dropped once read.
weights_cache: (directory, name, key) of packed weights to read, or to write for the next
    start; or None. A failure never raises: weights_cache_problem says what it was.
progress: called with (done, total) bytes of the checkpoint; what it raises ends the load.

Raises ModelFormatError, ConfigError, and EngineError where memory is short.)";

inline constexpr const char* kSeqNew = R"(Take and return the lowest free sequence id.

namespace: cached prefixes are shared with sequences of the same namespace only.
Raises NoFreeSequenceError when n_parallel are in use.)";

inline constexpr const char* kSeqCopy =
    R"(Make `dst` start with the first `n_tokens` of `src`.

dst: empty, another id, of the same namespace. Full blocks are shared, a partial last
one is copied. dst keeps its own sampling. Raises KvCacheFullError when
there is no block for the copy, and InvalidRequestError where `seq_copyable` says fewer.)";

inline constexpr const char* kSeqCopyable =
    R"(Return how many of `src`'s first `n_tokens` another sequence can be made to start with.

All of them, or whole blocks: fewer where layers with a sliding window have given back KV that the
next token sees.)";

inline constexpr const char* kSeqRemove = R"(Drop KV of positions [start, end).

end must be the sequence's length; -1 means that. With start = 0 the sequence is
freed; its full blocks stay cached for seq_match.)";

inline constexpr const char* kSeqLength =
    "Return the number of tokens whose KV the sequence holds.";

inline constexpr const char* kSeqExclusiveBlocks =
    "Return the number of KV blocks that this sequence alone holds: removing it makes them free or "
    "cached.";

inline constexpr const char* kSeqMatch =
    R"(Attach the longest cached prefix of `tokens` to an empty sequence.

Whole blocks, at most len(tokens) - 1 tokens, so that one is left to compute. Returns
the tokens attached.)";

inline constexpr const char* kSetSampling =
    R"(Set how the sequence draws its tokens from now on; without options: greedily.

The options are those of pybatcher.SamplingParams, and besides:
stop_token_ids: ids that are not drawn before min_tokens tokens are.
logprobs: None, or how many of the likeliest tokens to report beside the drawn one.
seed: 64 bits; with a token's absolute position, the key of its draw.
n_prompt: positions below this hold the prompt; min_tokens and the presence and
    frequency penalties count the tokens after it.

Order: logit_bias, repetition penalty, presence and frequency penalty, min_tokens;
then, unless greedy: temperature, top_k, top_p, min_p.)";

inline constexpr const char* kRunStep =
    R"(Run one forward pass over ragged rows: decode and prefill together.

seq_ids (n): a sequence each, none twice. counts (n): how many of `tokens` each appends.
tokens (sum of counts): one sequence's after the other's. samples (n): whose next
token to draw. drafts (n, or empty: none): how many of a sequence's last tokens are
a draft of what will be drawn. A draft token is accepted if it equals the token drawn
before it, and a token is drawn after it; the first that does not is given up with all
after it.
targets (n, or empty: none): per sequence, tokens whose log-probability is wanted, one
after each of its last rows; no more than it appends. poolings (n, or empty: none): None,
"mean", "last" or "cls": its rows, or the last or the first of them, after the final norm,
as one vector. Neither goes with sampling.
masks: a TokenMasks that says which tokens may be drawn, or None. The step waits for it to be
open before it draws. mask_rows (n, with masks): per sequence the row of `masks` for its first
drawn token, the rows of its draft tokens after it; -1: any token may be drawn.
n_top (n, or empty: none): how many of the likeliest tokens to report beside each target.

Returns (drawn, failed, logprobs, embeddings, top_logprobs). drawn, in the order of the entries: (seq_id, token, logprob or
None, ((token, logprob), ...)); for a sequence one more than draft tokens were accepted. failed: seq_id -> why no further token could be drawn for that sequence, or why it could
not be scored or pooled: its logits are not finite, for example. The tokens of all entries, failed ones too,
are appended. logprobs: seq_id -> a number for each target, of the model's own distribution.
embeddings: seq_id -> float32 (hidden_size). top_logprobs: where n_top is not 0, seq_id -> for each
target ((token, logprob), ...), likeliest first. All three without the sequences that failed.

Raises RequestTooLongError past max_sequence_length and KvCacheFullError, for the step
as a whole.)";

inline constexpr const char* kPrefillChunk = R"(Append tokens at the sequence's end.

logits: return those of the last row, float32 (vocab_size); else None.
Raises RequestTooLongError past max_sequence_length, KvCacheFullError, and EngineError
if logits are asked for and not finite.)";

inline constexpr const char* kDecodeBatch =
    R"(Append one token to each of n sequences in one forward pass; draw the next of each.

Returns the drawn tokens, int32 (n); with logits=True (tokens, logits), logits being
float32 (n, vocab_size), as the model gave them.
Raises RequestTooLongError past max_sequence_length, KvCacheFullError, and EngineError
if a token cannot be drawn.)";

inline constexpr const char* kEmbed =
    R"(Append tokens at the sequence's end and pool their states after the final norm.

pooling: "mean" over `tokens`, "last", or "cls": the first. Returns float32 (hidden_size).
Raises RequestTooLongError past max_sequence_length, KvCacheFullError, and EngineError
if the states are not finite.)";

inline constexpr const char* kStatistics = R"(Return the counters since the engine was made.

forward_passes: calls that computed, each one pass. computed_tokens: rows through the
layers. logits_rows: rows through the output head. sampled_tokens: tokens drawn.
proposed_tokens: rows of draft tokens. accepted_tokens: draft tokens that were accepted.
The counts are those after the last call that ended: a call in progress is not waited for.)";

inline constexpr const char* kRestart =
    R"(Drop every sequence and all cached KV, as if the engine had just been loaded.

Weights and the counters of statistics() stay. For a supervisor, after a call that failed
unexpectedly and may have left the bookkeeping inconsistent: it is made anew.)";

inline constexpr const char* kCheckIntegrity =
    "Recount the KV bookkeeping. Raises EngineError naming the first inconsistency.";

inline constexpr const char* kClose =
    "Free weights and KV, after a call in progress has ended. A second call does nothing.";

inline constexpr const char* kDescription =
    R"(Return what runs: dtype (of most weights), dtypes (of all matrices), kv_dtype, device, cpu_target, n_threads, weight_bytes, n_ctx,
kv_bytes, kv_windows, kv_states, and weights_cache: "off", "written", "mapped", "copied" (found, but small pages) or "failed".
kv_windows: (window, number of layers, number of KV blocks) of each group of layers that gives
back KV that has left its window. kv_states: (number of layers, number of states) of the recurrent
layers, if there are any.)";

}  // namespace pb::bindings::docs
