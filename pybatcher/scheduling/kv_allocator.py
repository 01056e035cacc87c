"""`KvAllocator`: the sequences and KV blocks of an engine, as the scheduler uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import EngineFailedError
from ..params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "WAY_OUT_FOR_ENCODERS",
    "KvAllocator",
    "appendable_blocks",
    "blocks_for",
    "free_sequence",
    "obtainable_blocks",
    "way_out",
]

WAY_OUT_FOR_ENCODERS = (
    "shorten it, or raise n_batch, n_ubatch or n_ctx: an encoder takes a text in one pass, so that "
    "the least of these and of the model's positions is the limit"
)
"""The remedy for a text that is too long for an encoder, for an error's message."""


class KvAllocator(Protocol):
    """Sequences and the KV blocks that they hold.

    No method is called while a step is computed; properties are read at any time. A method that
    raises has changed nothing.

    Blocks are free (without tokens), cached (held by no sequence, kept for `seq_match`, evicted
    when needed) or in use. Free and cached blocks can be allocated.
    """

    @property
    def block_size(self) -> int:
        """Positions of a block."""

    @property
    def n_parallel(self) -> int:
        """Most sequences at once."""

    @property
    def max_sequence_length(self) -> int:
        """Most positions of one sequence: the smaller of the model's positions and `n_ctx`."""

    @property
    def kv_total_blocks(self) -> int:
        """All blocks: `n_ctx`, rounded up to whole blocks."""

    @property
    def kv_free_blocks(self) -> int:
        """Blocks never used or wiped."""

    @property
    def kv_cached_blocks(self) -> int:
        """Blocks that no sequence holds, kept until they are needed."""

    @property
    def kv_appendable_blocks(self) -> int:
        """Blocks that one step can append: free and cached ones, or fewer.

        The number is smaller if layers with a sliding window have fewer blocks than others: the
        rows of a step have to fit beside the windows of all sequences. The windows themselves, and
        a row for each sequence, always fit.
        """

    @property
    def kv_most_appendable_blocks(self) -> int:
        """`kv_appendable_blocks` while there are no sequences."""

    @property
    def takes_drafts(self) -> bool:
        """True if tokens of a step can be rolled back, as rejected draft tokens are."""

    @property
    def tower_rows(self) -> int:
        """Most patches that the vision tower takes at a time; 0: the engine takes no images."""

    @property
    def tower_layers(self) -> int:
        """Layers of the vision tower."""

    @property
    def tower_row_cost(self) -> float:
        """Work of a patch in one layer of the tower, beside that of a token in the whole model."""

    def seq_positions(self, seq_id: int, positions: NDArray[np.int32]) -> None:
        """Set the rope positions (n, 3) of the sequence's first tokens."""

    def seq_new(self, namespace: str = "", *, common: bool = False) -> int:
        """Take the first free sequence id. Prefixes are shared inside a namespace only.

        common: the sequence has no namespace, and sequences of every namespace share its prefixes.
        """

    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Let the empty `dst` start with the first `n_tokens` of `src`.

        `src` is common, or of the same namespace.
        """

    def seq_copyable(self, src: int, n_tokens: int) -> int:
        """Return how many of the first `n_tokens` of `src` `seq_copy` can copy.

        The result is `n_tokens` or a number of whole blocks. It is smaller if layers with a sliding
        window have freed KV, or if recurrent layers have no state at that position.
        """

    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """Drop a sequence's KV from `start` on; all of it frees the id."""

    def seq_length(self, seq_id: int) -> int:
        """Return the number of tokens whose KV the sequence holds."""

    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of blocks that only this sequence holds."""

    def seq_match(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Attach the longest cached prefix, whole blocks, at most len - 1 tokens."""

    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Set how this sequence samples its tokens."""


def blocks_for(positions: int, block_size: int) -> int:
    """Return the number of blocks for `positions`; the last one may be partially filled."""
    return -(-positions // block_size)


def obtainable_blocks(kv: KvAllocator) -> int:
    """Return how many blocks can be allocated: free and cached ones.

    Raises EngineFailedError if the engine does not return its counts, as no request caused that.
    """
    try:
        return kv.kv_free_blocks + kv.kv_cached_blocks
    except Exception as error:
        raise _not_counted(error) from error


def appendable_blocks(kv: KvAllocator) -> int:
    """Return how many blocks the next step can append.

    Raises EngineFailedError if the engine does not return its count, as no request caused that.
    """
    try:
        return kv.kv_appendable_blocks
    except Exception as error:
        raise _not_counted(error) from error


def _not_counted(error: Exception) -> EngineFailedError:
    return EngineFailedError(f"the engine did not count its free KV: {error!r}")


def free_sequence(kv: KvAllocator, seq_id: int) -> None:
    """Remove a sequence. Raises EngineFailedError if the engine does not: its KV is lost."""
    try:
        kv.seq_remove(seq_id)
    except Exception as error:
        raise EngineFailedError(
            f"the engine did not give back the KV of sequence {seq_id}: {error!r}"
        ) from error


def way_out(kv: KvAllocator, remedy: str) -> str:
    """Return the remedy for a request that needs too many positions, for an error's message.

    remedy: a change that always helps, such as "shorten the prompt". The result names `n_ctx` if it
    is the limit, and the model's positions if they are.
    """
    if kv.max_sequence_length < kv.kv_total_blocks * kv.block_size:
        return f"{remedy}, as the model has no more positions"
    return f"{remedy} or raise n_ctx"
