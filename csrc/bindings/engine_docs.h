// Docstrings of _core.Engine, apart from the code that they describe for the sake of both.
#pragma once

namespace pb::bindings::docs {

inline constexpr const char* kEngine =
    R"(Weights, KV cache, device and sampler behind a handful of calls.

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
    also as "int8" | "int4": rows of GGUF's Q8_0 and Q4_0 blocks, uint8. And as (function, type,
    rows, columns): it is called when the matrix is packed, and what it returns then dropped.
    They are not kept: the packed weights are a copy.
dtype: "f32" | "bf16" | "int8" | "int4". kv_dtype: "f32" | "bf16" | "f16" | "int8".
device: "cpu" | "cuda".
n_ctx, n_parallel, n_ubatch, block_size: as in pybatcher.EngineConfig.
n_threads: 0 = the cores this process may use.
mapped: names of tensors that lie in a mapped file; their pages are dropped once read.
weights_cache: (directory, name, key) of packed weights to take or to leave for the next
    start, or None. What goes wrong with it never raises: weights_cache_problem has it.
progress: called with (done, total) bytes of the checkpoint; what it raises ends the load.

Raises ModelFormatError, ConfigError, and EngineError where memory is short.)";

inline constexpr const char* kSeqNew = R"(Take the lowest free sequence id.

namespace: cached prefixes are shared with sequences of the same namespace only.
Raises NoFreeSequenceError when n_parallel are in use.)";

inline constexpr const char* kSeqCopy =
    R"(Let `dst` start with the first `n_tokens` of `src`.

dst: empty, another id, of the same namespace. Full blocks are shared, a partial last
one is copied. How dst draws its tokens stays its own. Raises KvCacheFullError when
there is no block for the copy.)";

inline constexpr const char* kSeqRemove = R"(Drop KV of positions [start, end).

end must be the sequence's length; -1 means that. With start = 0 the sequence is
freed; its full blocks stay cached for seq_match.)";

inline constexpr const char* kSeqLength = "Tokens whose KV the sequence holds.";

inline constexpr const char* kSeqExclusiveBlocks =
    "KV blocks that this sequence alone holds: removing it makes them free or cached.";

inline constexpr const char* kSeqMatch =
    R"(Attach the longest cached prefix of `tokens` to an empty sequence.

Whole blocks, at most len(tokens) - 1 tokens, so that one is left to compute. Returns
the tokens attached.)";

inline constexpr const char* kSetSampling =
    R"(Say how the sequence draws its tokens from now on; without options: greedy.

The options are those of pybatcher.SamplingParams, and besides:
stop_token_ids: ids that are not drawn before min_tokens tokens are.
logprobs: None, or how many of the likeliest tokens to report beside the drawn one.
seed: 64 bits; with a token's absolute position, the key of its draw.
n_prompt: positions below this hold the prompt; min_tokens and the presence and
    frequency penalties count the tokens after it.

Order: logit_bias, repetition penalty, presence and frequency penalty, min_tokens;
then, unless greedy: temperature, top_k, top_p, min_p.)";

inline constexpr const char* kRunStep =
    R"(One forward pass over ragged rows: decode and prefill together.

seq_ids (n): a sequence each, none twice. counts (n): how many of `tokens` each appends.
tokens (sum of counts): one sequence's after the other's. samples (n): whose next
token to draw. drafts (n, or empty: none): how many of a sequence's last tokens are
guesses at what will be drawn. A guess that is what is drawn before it stays, and is
drawn after; from the first that is not, they are given up.
targets (n, or empty: none): per sequence, tokens whose log-probability is wanted, one
after each of its last rows; no more than it appends. poolings (n, or empty: none): None,
"mean" or "last": its rows, or the last of them, after the final norm, as one vector.
Neither goes with sampling.

Returns (drawn, failed, logprobs, embeddings). drawn, in the order of the entries: (seq_id, token, logprob or
None, ((token, logprob), ...)), for a sequence as many as guesses were right, and one
more. failed: seq_id -> why that one sequence could not draw a further token, its logits
not being finite, say, or be scored or pooled. The tokens of all entries, failed ones too,
are appended. logprobs: seq_id -> a number for each target, of the model's own distribution.
embeddings: seq_id -> float32 (hidden_size). Both without those that failed.

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

pooling: "mean" over `tokens`, or "last". Returns float32 (hidden_size).
Raises as prefill_chunk with logits does.)";

inline constexpr const char* kStatistics = R"(Counters since the engine was made.

forward_passes: calls that computed, each one pass. computed_tokens: rows through the
layers. logits_rows: rows through the output head. sampled_tokens: tokens drawn.
proposed_tokens: rows that were guesses. accepted_tokens: those of them that were right.
As of the last call that ended; never waits for one in progress.)";

inline constexpr const char* kRestart =
    R"(Forget every sequence and all cached KV, as if the engine had just been loaded.

Weights and the counters of statistics() stay. For a supervisor, after a call failed in a
way it should not have: the bookkeeping is made anew, whatever state that call left.)";

inline constexpr const char* kCheckIntegrity =
    "Recount the KV bookkeeping; EngineError that names the first thing that is off.";

inline constexpr const char* kClose =
    "Free weights and KV at once, after a call in progress. A second time it does nothing.";

inline constexpr const char* kDescription =
    R"(What runs: dtype, kv_dtype, device, cpu_target, n_threads, weight_bytes, kv_bytes, and
weights_cache: "off", "written", "mapped", "copied" (found, but small pages) or "failed".)";

}  // namespace pb::bindings::docs
