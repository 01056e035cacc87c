"""The compiled engine. Use it through `pybatcher.Engine`.

The docstrings below are the only ones: the build compiles them into the extension
(`cmake/core_docs.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.integer[Any]] | Sequence[int]
_Tensor = tuple[NDArray[Any], str] | tuple[Callable[[], NDArray[Any]], str, int, int]
_TopLogprobs = tuple[tuple[int, float], ...]
_Sampled = tuple[int, float | None, _TopLogprobs]
_EntryResult = tuple[
    int,
    tuple[_Sampled, ...],
    str | None,
    tuple[float, ...],
    tuple[_TopLogprobs, ...],
    NDArray[np.float32] | None,
]

ALL_FORBIDDEN: str
"""The failure of a sequence whose own sampling parameters forbid every token."""

def config_fields() -> list[dict[str, Any]]:
    """Return the scalar fields of `ModelConfig` and of its parts: csrc/config/config_fields.def.

    owner: "" for `ModelConfig` itself, or the name of its field that holds the part. name.
    type: "bool", "int", "float" or "str". is_required, default. low, high: None if there is no
    limit. excludes_low: the value must be above low. choices: the values of a "str", or () if it
    may be any text. meaning: a text.
    """

def cores() -> dict[str, Any]:
    """Return the fields of `pybatcher.machine.cores.Cores`."""

def cuda_info() -> dict[str, Any]:
    """Return the fields of `pybatcher.machine.cuda.CudaInfo`; each device is a tuple."""

def quantise(
    name: str, tensor: tuple[NDArray[Any], str], dtype: str, n_threads: int
) -> NDArray[np.uint8]:
    """Quantise a matrix into super-blocks of 256 elements.

    name: the name of the tensor, for messages. tensor: (array, element type), as `Engine` takes
    it. dtype: "q4_k", "q5_k" or "q6_k". n_threads: 0 means the cores that this process may use.
    Returns rows of blocks: (rows, columns / 256 * bytes of a block), uint8.
    Raises ModelFormatError if the tensor is not a matrix, or if its rows are not whole
    super-blocks.
    """

class MappedFiles:
    """A context manager for reading mapped files that other programs may truncate.

    Within it, memory past the end of a truncated file reads as zeros, and does not raise SIGBUS.
    The caller compares the sizes of the files afterwards.
    """

    def __init__(self, files: Sequence[NDArray[np.uint8]]) -> None:
        """Make a guard of whole mappings, which it keeps alive."""
    def __enter__(self) -> None:
        """Guard the mappings from now on."""
    def __exit__(self, *_: object) -> None:
        """End the guard."""

def weight_formats() -> dict[str, dict[str, Any]]:
    """Return facts about each weight format of the engine, by its name.

    n_elements, n_bytes: of a block. gguf_name, gguf_type: in GGUF files; "" and None if they do
    not have the format. native_only: nothing is rounded to it. in_int8, in_bf16: a matrix of that
    dtype holds all its numbers.
    """

class Engine:
    """Weights, KV cache, device and sampler of one model.

    Calls from several threads run one after the other. A thread that waits for a call does not
    hold the GIL. Every call checks all of its arguments before it changes anything, and a call
    that raises leaves every sequence unchanged. An unknown or freed sequence id and a token
    outside the vocabulary raise InvalidRequestError. Every call after `close`, or in a forked
    child, raises EngineError.

    `tokens` and `seq_ids` are one-dimensional arrays of any integer type, or sequences of whole
    numbers.
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
        native: set[str] = ...,
        weights_cache: tuple[str, str, str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        vision: dict[str, Any] | None = None,
    ) -> None:
        """Pack a model's weights for the device.

        config: the fields of `pybatcher.loading.ModelConfig` by name.
        tensors: canonical name -> (array, element type). An array of bf16 is uint16, and a
            quantised matrix is rows of GGUF blocks, uint8. A matrix may also be (function,
            element type, rows, columns): the function is called when the matrix is packed, and
            its result is dropped afterwards. A fifth item, int32, is the input of each column,
            if the columns are permuted. The engine keeps no reference to an array: the packed
            weights are a copy.
        dtype: "f32", "bf16", "int8" or "int4". kv_dtype: "f32", "bf16", "f16" or "int8".
        device: "cpu" or "cuda".
        n_ctx, n_parallel, n_ubatch, block_size: as in `pybatcher.EngineConfig`.
        n_threads: 0 means the cores that this process may use.
        mapped: names of the tensors that are in a mapped file. Their pages are dropped once they
            have been read.
        native: names of the matrices that keep their element type (f16 becomes bf16) if the device
            can mix element types. The other matrices become `dtype`.
        weights_cache: (directory, name, key) of packed weights to read, or to write for the next
            start. A cache that fails does not raise: `weights_cache_problem` has the reason.
        progress: called with (done, total) bytes of the checkpoint. An exception that it raises
            ends the load.
        vision: the fields of `pybatcher.loading.VisionConfig` by name, if the tensors have a vision
            tower's.
        Raises ModelFormatError, ConfigError, and EngineError if memory is short.
        """

    @staticmethod
    def plan(
        config: dict[str, Any],
        tensors: dict[str, _Tensor],
        *,
        dtype: str,
        kv_dtype: str,
        device: str,
        n_ctx: int | str,
        n_parallel: int,
        n_ubatch: int,
        block_size: int,
        native: set[str] = ...,
        vision: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return facts about an engine that is not made: its memory, n_ctx and KV groups.

        The arguments are those of the constructor. Values of tensors are not read, and functions
        are not called. `buffer_bytes` is an estimate. `available_bytes` is the free memory of the
        device; on the CPU the limits of cgroups count. Other fields are those of `description`.
        Raises ModelFormatError, ConfigError, and EngineError for a GPU that cannot be used.
        """
    def seq_new(self, namespace: str = "", *, common: bool = False) -> int:
        """Take the lowest free sequence id and return it.

        namespace: the sequence shares cached prefixes with sequences of the same namespace only.
        common: the sequence has no namespace, and sequences of every namespace share its prefixes.
            It shares those of common sequences only.
        Raises NoFreeSequenceError if `n_parallel` sequences are in use, and InvalidRequestError for
        a common sequence with a namespace.
        """
    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Make `dst` start with the first `n_tokens` tokens of `src`.

        dst: an empty sequence other than `src`, of the same namespace, or of any if `src` is
            common. It keeps its own sampling parameters.
        Full blocks are shared, and a partial last block is copied. Raises KvCacheFullError if
        there is no block for the copy, and InvalidRequestError if `seq_copyable` returns fewer
        tokens.
        """
    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """Drop the KV of positions [start, end).

        end: the length of the sequence, or -1, which means the same. With `start` 0 the sequence
        id becomes free; the full blocks stay cached for `seq_match`.
        """
    def seq_length(self, seq_id: int) -> int:
        """Return the number of tokens whose KV the sequence holds."""
    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of KV blocks that only this sequence holds.

        Removing the sequence makes these blocks free or cached.
        """
    def seq_copyable(self, src: int, n_tokens: int) -> int:
        """Return how many of the first `n_tokens` tokens of `src` `seq_copy` can copy.

        The result is `n_tokens` or a number of whole blocks. It is smaller than `n_tokens` if
        layers with a sliding window have freed KV that the next token attends to.
        """
    def seq_match(self, seq_id: int, tokens: _Ids) -> int:
        """Attach the longest cached prefix of `tokens` to an empty sequence.

        The prefix is a number of whole blocks and at most len(tokens) - 1 tokens, so that one
        token is left to compute. Returns the number of tokens attached.
        """
    def seq_positions(self, seq_id: int, positions: NDArray[np.integer[Any]]) -> None:
        """Set the rope positions of a sequence's first tokens, for a model with images.

        positions: (n, 3): time, height and width of each of the first n tokens, below n. Each later
            token has one position, which follows the greatest one of the token before it. Without
            this call, the position of a token is its index.
        Raises InvalidRequestError for a model whose tokens have one position.
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
        """Set how the sequence samples its tokens from now on; without options: greedy.

        The options are those of `pybatcher.SamplingParams`, and these:
        stop_token_ids: token ids that are not sampled before `min_tokens` tokens are.
        logprobs: None, or how many of the likeliest tokens to report beside the sampled token.
        seed: 64 bits. The seed and the absolute position of a token are the key of its random
            number.
        n_prompt: positions below it hold the prompt. min_tokens and the presence and frequency
            penalties count the tokens after the prompt only.

        Order: logit_bias, repetition penalty, presence and frequency penalty, min_tokens; then,
        unless greedy: temperature, top_k, top_p, min_p.
        """
    def run_step(
        self,
        entries: Sequence[tuple[Any, ...]],
        masks: TokenMasks | None = None,
        mask_rows: dict[int, int] = ...,
    ) -> list[_EntryResult]:
        """Run one forward pass over the new tokens of several sequences: decode and prefill.

        entries: one tuple for each sequence, with the first eight fields of
            `pybatcher.scheduling.plan.StepEntry`, which documents them: (seq_id, tokens, sample,
            n_draft=0, targets=(), pooling=None, n_top=0, images=()). The last five may be missing,
            and fields after the eighth are ignored. No sequence has two entries.
        masks: the tokens that may be sampled. The pass waits until `masks` is open before it
            samples.
        mask_rows: seq_id -> the row of `masks` for the first token that the sequence samples; the
            rows of its draft tokens follow. A sequence that is not a key may sample any token.

        Returns a tuple for each entry, in their order: (seq_id, sampled, failure, logprobs,
        top_logprobs, embedding).
        sampled: (token, logprob or None, ((token, logprob), ...)) for each sampled token: one
            more than the number of accepted draft tokens.
        failure: the reason why no further token could be sampled, or why the entry could not be
            scored or pooled; else None.
        logprobs: the log-probability of each target by the model's own distribution.
        top_logprobs: ((token, logprob), ...) for each target, likeliest first, if n_top is not 0.
        embedding: float32 (hidden_size,) if pooling is not None.
        The last three are empty or None after a failure. The tokens of all entries are appended,
        also those of entries that failed.

        Raises RequestTooLongError past `max_sequence_length`, and KvCacheFullError, for the step
        as a whole.
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
        """Append tokens to the sequence.

        logits: return the logits of the last row, float32 (vocab_size,); else None.
        Raises RequestTooLongError past `max_sequence_length`, KvCacheFullError, and EngineError if
        logits are wanted and not finite.
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
        """Append one token to each of n sequences and sample the next token of each.

        Returns the sampled tokens, int32 (n,). With `logits`, returns (tokens, logits): the
        model's logits are float32 (n, vocab_size).
        Raises RequestTooLongError past `max_sequence_length`, KvCacheFullError, and EngineError if
        a token cannot be sampled.
        """
    def embed(self, seq_id: int, tokens: _Ids, pooling: str = "mean") -> NDArray[np.float32]:
        """Append tokens to the sequence and pool their states after the final norm.

        pooling: "mean" over `tokens`, "last", or "cls", which is the first. Returns float32
        (hidden_size,).
        Raises RequestTooLongError past `max_sequence_length`, KvCacheFullError, and EngineError if
        the states are not finite.
        """
    def restart(self) -> None:
        """Drop every sequence and all cached KV, as if the engine had just been loaded.

        The weights and the counters of `statistics` stay. A supervisor calls this after a call
        that failed unexpectedly and may have left the KV bookkeeping inconsistent: the
        bookkeeping is rebuilt from scratch.
        """
    def statistics(self) -> dict[str, int]:
        """Return the counters since the engine was made, after the last call that ended.

        forward_passes: calls that computed. computed_tokens: rows through the layers.
        logits_rows: rows through the output head. sampled_tokens: sampled tokens.
        proposed_tokens: rows of draft tokens. accepted_tokens: accepted draft tokens.
        Never waits for a call in progress.
        """
    def description(self) -> dict[str, Any]:
        """Return the formats, the device and the memory of the engine.

        dtype: the element type of most weights. dtypes: those of all matrices. kv_dtype, device,
        cpu_target, n_threads, weight_bytes, n_ctx, kv_bytes.
        kv_windows: (window, number of layers, number of KV blocks) of each group of layers with a
            sliding window. kv_states: (number of layers, number of states) of the recurrent
            layers.
        weights_cache: "off", "written", "mapped", "copied" (found, but with small pages) or
            "failed".
        """
    def tower_begin(self, tiles: Sequence[tuple[NDArray[Any], ...]]) -> None:
        """Begin to compute the embeddings of the tiles of images. Copies the arrays.

        tiles: (patches, coordinates, table_index, table_weight, windows) of each tile, of n patches
            in an order in which those of one row of the result are consecutive.
            patches: (n, patch_size), in the order of the columns of the patch weight.
            coordinates: (n, 2), the row and the column of each patch, for rotary embeddings.
            table_index, table_weight: (n, k), the rows of the position table that are added to a
            patch, and their factors; k may be 0.
            windows: (n_windows,), the lengths of the attention windows, which are consecutive
            patches; empty if no layer has windows.
        All tiles together have up to `tower_rows` patches. Raises InvalidRequestError for other
        shapes or numbers, while tiles are in progress, and without a vision tower.
        """
    def tower_run(self, n_row_layers: int) -> bool:
        """Compute a part of the tiles in progress, and return True if all is computed.

        Computes chunks of up to `n_ubatch` patches until `n_row_layers` patches times layers are
        done, or all; at least one chunk. Results do not depend on how the work is divided, nor on
        the other tiles. Raises EngineError if the device fails, which ends the work, and
        InvalidRequestError if no tiles are in progress.
        """
    def tower_take(self) -> list[NDArray[np.float32] | str]:
        """Return the rows of each tile, and end the work.

        A tile has an array (n / group, `image_columns`), or the reason why it has none: not all of
        its numbers are finite. Raises InvalidRequestError unless `tower_run` has returned True.
        """
    def tower_drop(self) -> None:
        """End the work in progress, if any. Raises InvalidRequestError without a vision tower."""
    def check_integrity(self) -> None:
        """Recount the KV bookkeeping. Raises EngineError that names the first inconsistency."""
    def close(self) -> None:
        """Free weights and KV, after a call in progress has ended. A second call does nothing."""
    @property
    def vocab_size(self) -> int:
        """Number of token ids, which go from 0 to vocab_size - 1."""
    @property
    def hidden_size(self) -> int:
        """Length of an embedding."""
    @property
    def image_columns(self) -> int:
        """Numbers of a row of `StepEntry.images`; 0 if the model takes no images."""
    @property
    def takes_images(self) -> bool:
        """True if the engine has a vision tower."""
    @property
    def tower_rows(self) -> int:
        """Most patches of one `tower_begin`; 0 without a vision tower."""
    @property
    def tower_layers(self) -> int:
        """Number of layers of the vision tower; 0 without one."""
    @property
    def tower_row_cost(self) -> float:
        """Work of a patch in one layer of the tower, beside that of a token in the text model.

        The ratio of the multiply-adds of matrix products; 0 without a tower.
        """
    @property
    def block_size(self) -> int:
        """Positions in a KV block."""
    @property
    def n_parallel(self) -> int:
        """Largest number of sequences in use at once."""
    @property
    def n_ubatch(self) -> int:
        """Largest number of rows of one ubatch."""
    @property
    def n_ctx(self) -> int:
        """KV capacity in tokens, which all sequences share: a multiple of `block_size`."""
    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest sequence: the smaller of the model's positions and `n_ctx`."""
    @property
    def weights_cache_problem(self) -> str:
        """The reason why the weights cache could not be used; "" if it could."""
    @property
    def kv_total_blocks(self) -> int:
        """Number of KV blocks, used or not."""
    @property
    def kv_free_blocks(self) -> int:
        """Number of KV blocks without tokens. Never waits for a call."""
    @property
    def kv_cached_blocks(self) -> int:
        """Number of KV blocks that no sequence holds and `seq_match` can attach.

        Never waits for a call.
        """
    @property
    def kv_appendable_blocks(self) -> int:
        """Number of KV blocks that one step can append to sequences. Never waits for a call.

        This is the number of free and cached blocks, or a smaller number if layers with a
        sliding window have fewer.
        """
    @property
    def kv_most_appendable_blocks(self) -> int:
        """`kv_appendable_blocks` of an engine without sequences."""
    @property
    def takes_drafts(self) -> bool:
        """True if steps may have draft tokens: a model with recurrent layers takes none."""
    @property
    def used_sequences(self) -> int:
        """Number of sequence ids in use. Never waits for a call."""
    @property
    def progress(self) -> int:
        """A counter that grows with every layer and every sampled token of a call in progress.

        Any thread may read it at any time, also after `close`: it never waits and never raises.
        A call during which the counter stands still hangs.
        """

class KvCache:
    """The bookkeeping of the KV cache: sequences, reference counts and the prefix index.

    The engine's own cache has the same bookkeeping. This class has no keys and values, and is
    for tests and simulations. Not thread-safe. Every call that takes a seq_id raises
    InvalidRequestError if no sequence has it.
    """

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
    ) -> None:
        """Make an empty cache.

        n_blocks: blocks in the pool. block_size: tokens in a block.
        n_parallel: largest number of sequences. max_length: largest number of tokens of one
            sequence.
        copy_block: called as copy_block(group, from, to) to copy a shared, partly filled block
            before the cache writes to it. An exception of it is raised by the call that needs the
            copy. It may not change the cache.
        hash_mask: and-ed to every hash of the prefix index, so that tests can make collisions.
        windows: (window, blocks in its pool) of each group of layers after the first.
        Raises ConfigError if a size is below 1.
        """
    def seq_new(self, namespace: str = "", *, common: bool = False) -> int:
        """Take the lowest free id and return it. The arguments are those of `Engine.seq_new`.

        Raises NoFreeSequenceError if `n_parallel` ids are in use.
        """
    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Make the empty sequence `dst` start with the first `n_tokens` tokens of `src`.

        Full blocks are shared, and a partial last block is copied. Raises KvCacheFullError if
        there is no block for the copy.
        """
    def seq_copyable(self, src: int, n_tokens: int) -> int:
        """Return how many of the first `n_tokens` tokens of `src` `seq_copy` can copy.

        The result is `n_tokens` or a number of whole blocks.
        """
    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """Drop positions [start, end) of a sequence.

        end: the length of the sequence, or -1, which means the same. With `start` 0 the id
        becomes free.
        """
    def seq_length(self, seq_id: int) -> int:
        """Return the number of tokens of a sequence, without the reserved ones."""
    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of blocks that only this sequence holds.

        Removing the sequence makes these blocks free or cached.
        """
    def seq_match(self, seq_id: int, tokens: _Ids) -> int:
        """Attach the longest cached prefix of `tokens` to an empty sequence.

        The prefix is a number of whole blocks and at most len(tokens) - 1 tokens. Returns the
        number of tokens attached.
        """
    def reserve(self, seq_id: int, tokens: _Ids) -> None:
        """Take blocks for `tokens` after the end of the sequence; its length does not change.

        A last partial block that is shared or in the prefix index is copied first. A call that
        raises changes nothing, except that it may have evicted cached blocks. Raises
        InvalidRequestError without tokens, RequestTooLongError past `max_length`,
        KvCacheFullError if too few blocks are free or cached, and EngineError if the sequence has
        a reservation already.
        """
    def commit(self, seq_id: int, n_tokens: int | None = None) -> None:
        """Append the first `n_tokens` reserved tokens, or all, and release the others.

        Blocks that are full now enter the prefix index. Raises EngineError if fewer tokens are
        reserved.
        """
    def rollback(self, seq_id: int) -> None:
        """Release the reserved tokens. Does nothing if there are none."""
    def block_table(self, seq_id: int, group: int = 0) -> list[int]:
        """Return the block numbers of a sequence in a group, with those of reserved tokens.

        Position p is in block `block_table(seq_id)[p // block_size]`. The number of a block that
        has been freed is 0.
        """
    def tokens(self, seq_id: int) -> list[int]:
        """Return the tokens of a sequence, without the reserved ones."""
    def seq_exists(self, seq_id: int) -> bool:
        """Return whether the id is in use."""
    def drop_cached(self) -> None:
        """Make every cached block free."""
    def check_integrity(self) -> None:
        """Recount everything. Raises EngineError that names the first inconsistency."""
    @property
    def block_size(self) -> int:
        """Tokens in a block."""
    @property
    def n_parallel(self) -> int:
        """Largest number of sequences."""
    @property
    def max_length(self) -> int:
        """Largest number of tokens of one sequence."""
    @property
    def total_blocks(self) -> int:
        """Number of blocks."""
    @property
    def free_blocks(self) -> int:
        """Number of blocks without tokens."""
    @property
    def cached_blocks(self) -> int:
        """Number of blocks that no sequence holds and `seq_match` can attach."""
    @property
    def appendable_blocks(self) -> int:
        """Number of blocks that can be appended to sequences at once."""
    @property
    def used_sequences(self) -> int:
        """Number of ids in use."""

class TokenMasks:
    """Masks of the tokens that a step may sample, and a gate that the step waits for.

    A mask has a bit for each token id: bit t % 32 of word t / 32, uint32. Other threads may write
    to the masks between `close` and `open`, and not while they are open.
    """

    def __init__(self, n_rows: int, vocab_size: int) -> None:
        """Allocate `n_rows` masks of `vocab_size` bits.

        Raises InvalidRequestError if a size is out of range.
        """
    @property
    def n_rows(self) -> int:
        """Number of masks."""
    @property
    def row_bytes(self) -> int:
        """Bytes of a mask."""
    @property
    def address(self) -> int:
        """Address of the first mask, valid as long as the object."""
    def close(self) -> None:
        """Close the gate: threads may write to the masks, and a step waits from now on."""
    def open(self) -> None:
        """Open the gate: the step that waits continues. Any thread may call it."""
