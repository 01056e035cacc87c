"""The compiled engine. Use it through `pybatcher.Engine`.

The docstrings below are short: `csrc/bindings/engine_docs.h` has the full ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.integer[Any]] | Sequence[int]
_Tensor = tuple[NDArray[Any], str] | tuple[Callable[[], NDArray[Any]], str, int, int]
_TopLogprobs = tuple[tuple[int, float], ...]
_Drawn = tuple[int, int, float | None, _TopLogprobs]

ALL_FORBIDDEN: str
"""The failure of a draw whose own parameters forbid every token."""

def cores() -> dict[str, Any]:
    """Return the fields of `Cores`."""

def cuda_info() -> dict[str, Any]:
    """Return the fields of `CudaInfo`; each device is a tuple."""

def quantise(
    name: str, tensor: tuple[NDArray[Any], str], dtype: str, n_threads: int
) -> NDArray[np.uint8]:
    """Return a matrix in super-blocks that hold numbers near to its own.

    name: for messages. tensor: (array, element type), as `Engine` takes it. dtype: "q4_k", "q5_k"
    or "q6_k". n_threads: 0 = the cores this process may use. Returns rows of blocks as bytes.
    Raises ModelFormatError where rows are no whole super-blocks.
    """

class Engine:
    """Weights, KV cache, device and sampler of one model.

    Calls from several threads run one after the other; a waiting one does not hold the GIL.
    Every call checks its arguments before it changes anything, and one that raises leaves
    every sequence unchanged. Raises InvalidRequestError for an unknown sequence id and for a
    token outside the vocabulary, EngineError after `close` and in a forked child.
    """

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, _Tensor],
        *,
        dtype: str,
        kv_dtype: str,
        device: str,
        n_ctx: int | str,
        n_parallel: int,
        n_ubatch: int,
        n_threads: int,
        block_size: int,
        mapped: set[str] = ...,
        kept: set[str] = ...,
        weights_cache: tuple[str, str, str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Pack a model's weights for the device.

        config: fields of `ModelConfig`. tensors: canonical name -> (array, dtype), or
        (function, dtype, rows, columns), called when the matrix is packed; behind these the
        input of each column, int32, where columns do not lie as inputs do. mapped: names of
        the tensors in a mapped file. kept: names of matrices that keep their dtype where the
        device can mix dtypes. weights_cache: (directory, file name, key).
        Raises ModelFormatError, ConfigError, and EngineError where memory is short.
        """
    def seq_new(self, namespace: str = "") -> int:
        """Take the lowest free sequence id. Raises NoFreeSequenceError."""
    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Let the empty `dst` start with the first `n_tokens` of `src`.

        Shares full blocks and copies a partial last one. Raises KvCacheFullError, and
        InvalidRequestError where `seq_copyable` says fewer.
        """
    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """Drop the KV of positions [start, length); start 0 also frees the id."""
    def seq_length(self, seq_id: int) -> int:
        """Return the number of tokens whose KV the sequence holds."""
    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of KV blocks that only this sequence holds."""
    def seq_copyable(self, src: int, n_tokens: int) -> int:
        """Return how many of `src`'s first `n_tokens` another sequence can be made to start with.

        All of them, or whole blocks: fewer where layers with a sliding window have given back
        KV that the next token sees.
        """
    def seq_match(self, seq_id: int, tokens: _Ids) -> int:
        """Attach the longest cached prefix of `tokens` to an empty sequence.

        Whole blocks, at most len(tokens) - 1 tokens. Returns the tokens attached.
        """
    def set_sampling(
        self,
        seq_id: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = ...,
        min_tokens: int = 0,
        stop_token_ids: _Ids = (),
        logprobs: int | None = None,
        seed: int = 0,
        n_prompt: int = 0,
    ) -> None:
        """Set how the sequence samples its tokens; without options: greedy."""
    def run_step(
        self,
        seq_ids: _Ids,
        counts: _Ids,
        tokens: _Ids,
        samples: Sequence[bool],
        drafts: _Ids = (),
        targets: Sequence[_Ids] = (),
        poolings: Sequence[str | None] = (),
        masks: TokenMasks | None = None,
        mask_rows: _Ids = (),
        n_top: _Ids = (),
    ) -> tuple[
        list[_Drawn],
        dict[int, str],
        dict[int, tuple[float, ...]],
        dict[int, NDArray[np.float32]],
        dict[int, tuple[tuple[tuple[int, float], ...], ...]],
    ]:
        """Run one forward pass over n sequences' new tokens: decode and prefill together.

        seq_ids (n,). counts (n,): tokens appended to each. tokens (sum of counts,). samples
        (n,): sample the next token. drafts (n,): how many of the last tokens are drafts.
        targets (n,): token ids whose log-probabilities to return. poolings (n,): None,
        "mean", "last" or "cls". masks: which tokens may be drawn; the step waits until it is open.
        mask_rows (n,): the entry's first row in `masks`, -1: none. n_top (n,): how many of
        the likeliest tokens to report beside each target.
        Returns (sampled, failed, logprobs, embeddings, top_logprobs): (seq_id, token, logprob,
        top) in the order of the entries; by seq_id the reason, the targets' log-probabilities,
        float32 (hidden_size,), and the likeliest tokens beside each target.
        Raises RequestTooLongError past `max_sequence_length`, and KvCacheFullError.
        """
    @overload
    def prefill_chunk(
        self, seq_id: int, tokens: _Ids, *, logits: Literal[False] = False
    ) -> None: ...
    @overload
    def prefill_chunk(
        self, seq_id: int, tokens: _Ids, *, logits: Literal[True]
    ) -> NDArray[np.float32]: ...
    @overload
    def prefill_chunk(
        self, seq_id: int, tokens: _Ids, *, logits: bool
    ) -> NDArray[np.float32] | None:
        """Append tokens; return the last row's logits, float32 (vocab_size,), or None.

        Raises RequestTooLongError, KvCacheFullError, and EngineError for logits that are
        not finite.
        """
    @overload
    def decode_batch(
        self, seq_ids: _Ids, tokens: _Ids, *, logits: Literal[False] = False
    ) -> NDArray[np.int32]: ...
    @overload
    def decode_batch(
        self, seq_ids: _Ids, tokens: _Ids, *, logits: Literal[True]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    @overload
    def decode_batch(
        self, seq_ids: _Ids, tokens: _Ids, *, logits: bool
    ) -> NDArray[np.int32] | tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Append one token to each of n sequences and sample the next of each.

        Returns the tokens, int32 (n,), and with `logits` also float32 (n, vocab_size).
        Raises RequestTooLongError, KvCacheFullError, and EngineError if a token cannot be
        sampled.
        """
    def embed(self, seq_id: int, tokens: _Ids, pooling: str = "mean") -> NDArray[np.float32]:
        """Append tokens and pool their states ("mean", "last", "cls"): float32 (hidden_size,).

        Raises as `prefill_chunk` with logits.
        """
    def restart(self) -> None:
        """Forget every sequence and all cached KV; weights and statistics stay."""
    def statistics(self) -> dict[str, int]:
        """Return the counters since the engine was made. Never waits for a call."""
    def description(self) -> dict[str, Any]:
        """Return dtypes, device, CPU target, threads, bytes of weights and KV, and the
        state of the weights cache."""
    def check_integrity(self) -> None:
        """Recount the KV bookkeeping; raise EngineError for a wrong count."""
    def close(self) -> None:
        """Free weights and KV, after a call in progress. Does nothing a second time."""
    @property
    def vocab_size(self) -> int:
        """Number of token ids; they begin at 0."""
    @property
    def hidden_size(self) -> int:
        """Length of an embedding."""
    @property
    def block_size(self) -> int:
        """Positions in a KV block."""
    @property
    def n_parallel(self) -> int:
        """Largest number of sequences in use."""
    @property
    def n_ubatch(self) -> int:
        """Rows of one physical pass."""
    @property
    def n_ctx(self) -> int:
        """KV capacity in tokens, a multiple of `block_size`."""
    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest sequence: the smaller of the model's positions and `n_ctx`."""
    @property
    def weights_cache_problem(self) -> str:
        """Why the weights cache could not be used; "" if it could."""
    @property
    def kv_total_blocks(self) -> int:
        """Number of KV blocks."""
    @property
    def kv_free_blocks(self) -> int:
        """Number of KV blocks without tokens. Never waits for a call."""
    @property
    def kv_cached_blocks(self) -> int:
        """Number of KV blocks kept for `seq_match`. Never waits for a call."""
    @property
    def kv_appendable_blocks(self) -> int:
        """Number of KV blocks that one step can append to sequences. Never waits for a call.

        Free and cached ones, or fewer, where layers with a sliding window have fewer.
        """
    @property
    def kv_most_appendable_blocks(self) -> int:
        """`kv_appendable_blocks` of an engine without sequences."""
    @property
    def takes_drafts(self) -> bool:
        """Whether steps may have drafts: a model with recurrent layers takes none."""
    @property
    def used_sequences(self) -> int:
        """Number of sequence ids in use. Never waits for a call."""
    @property
    def progress(self) -> int:
        """A counter that grows while a call computes. Never waits, never raises."""

class KvCache:
    """Track which sequence holds which KV block; keys and values are the engine's."""

    def __init__(
        self,
        *,
        n_blocks: int,
        block_size: int,
        n_parallel: int,
        max_length: int,
        copy_block: Callable[[int, int, int], None],
        hash_mask: int = ...,
        windows: Sequence[tuple[int, int]] = ...,
    ) -> None: ...
    def seq_new(self, namespace: str = "") -> int: ...
    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None: ...
    def seq_copyable(self, src: int, n_tokens: int) -> int: ...
    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None: ...
    def seq_length(self, seq_id: int) -> int: ...
    def seq_exclusive_blocks(self, seq_id: int) -> int: ...
    def seq_match(self, seq_id: int, tokens: _Ids) -> int: ...
    def reserve(self, seq_id: int, tokens: _Ids) -> None: ...
    def commit(self, seq_id: int, n_tokens: int | None = None) -> None: ...
    def rollback(self, seq_id: int) -> None: ...
    def block_table(self, seq_id: int, group: int = 0) -> list[int]: ...
    def tokens(self, seq_id: int) -> list[int]: ...
    def seq_exists(self, seq_id: int) -> bool: ...
    def drop_cached(self) -> None: ...
    def check_integrity(self) -> None: ...
    @property
    def block_size(self) -> int: ...
    @property
    def n_parallel(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def cached_blocks(self) -> int: ...
    @property
    def appendable_blocks(self) -> int: ...
    @property
    def used_sequences(self) -> int: ...

class TokenMasks:
    """Masks that say which tokens a step may draw, and a gate that the step waits for."""

    def __init__(self, n_rows: int, vocab_size: int) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def close(self) -> None: ...
    def open(self) -> None: ...
