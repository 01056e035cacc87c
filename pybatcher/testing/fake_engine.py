"""`FakeEngine`: the engine's calls and rules without a model.

The next token (`FakeModel`) is a hash of all tokens so far, and of the seed unless the temperature
is 0. The tokens are read from the blocks of `FakeKv`, so that output does not depend on the other
requests of a step, and is wrong if a caller mixes up KV.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast, get_args

from ..errors import EngineError, InvalidRequestError
from ..params import SamplingParams
from ..params.config import EngineConfig
from ..scheduling.images import FIRST_IMAGE_ID
from ..scheduling.plan import (
    EncodeWork,
    Pooling,
    SampledToken,
    StepEntry,
    StepPlan,
    StepResult,
    TopLogprobs,
)
from .chosen_tokens import NextToken
from .fake_kv import FakeKv
from .fake_model import FakeModel, FakeSampling

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FakeEngine"]

_POOLINGS = get_args(Pooling)
_TOWER_ROWS = 4096


class FakeEngine:
    """Deterministic stand-in for `pybatcher.Engine`.

    step_delay: seconds that a step takes.
    before_step: called with each plan, on the engine thread; may block or raise.
    fail_sequences: called with each plan; returns the step's `failed`.
    tower_rows: most patches that its vision tower takes at a time; 0: it takes no images. The row
        of a token of an image is a hash of the tile's `digest` and the token's index.
    plans: every plan so far.

    Runs one call at a time, as the engine does; a second call, from another thread,
    raises EngineError instead of waiting.
    """

    VOCAB_SIZE = 258

    def __init__(
        self,
        *,
        n_ctx: int = 8192,
        n_parallel: int = 8,
        block_size: int = 32,
        vocab_size: int = VOCAB_SIZE,
        hidden_size: int = 8,
        max_positions: int | None = None,
        step_delay: float = 0.0,
        before_step: Callable[[StepPlan], None] | None = None,
        fail_sequences: Callable[[StepPlan], Mapping[int, str]] | None = None,
        tower_rows: int = 0,
    ) -> None:
        n_blocks = -(-n_ctx // block_size)
        self.n_ctx = n_blocks * block_size
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.max_sequence_length = min(max_positions or self.n_ctx, self.n_ctx)
        self.step_delay, self.before_step = step_delay, before_step
        self.fail_sequences = fail_sequences
        self.tower_rows = tower_rows
        self.plans: list[StepPlan] = []
        self.closed = False
        self._empty_kv = partial(FakeKv, n_blocks, block_size, n_parallel, self.max_sequence_length)
        self._kv = self._empty_kv()
        self._model = FakeModel(vocab_size, hidden_size)
        self._sampling: dict[int, FakeSampling] = {}
        self._tiles: tuple[Any, ...] = ()
        self._row_layers_left = 0
        self._contents: dict[int, int] = {}  # of the rows of images, by their ids
        self._one_call = threading.Lock()
        self._computed_tokens = self._logits_rows = self._progress = 0
        self._sampled_tokens = self._proposed_tokens = self._accepted_tokens = 0

    @classmethod
    def from_config(
        cls, config: EngineConfig, n_prefixes: int = 0, vocab_size: int = VOCAB_SIZE
    ) -> Self:
        """Make one with the sizes of `config`.

        "auto" is 8192 for n_ctx, 32 for block_size and for n_parallel. n_prefixes: sequences beside
        `n_parallel`, for shared prefixes.
        """
        given = {name: getattr(config, name) for name in ("n_ctx", "block_size")}
        sizes = {name: value for name, value in given.items() if value != "auto"}
        n_parallel = config.most_parallel + n_prefixes
        tower_rows = _TOWER_ROWS if config.vision else 0
        return cls(n_parallel=n_parallel, vocab_size=vocab_size, tower_rows=tower_rows, **sizes)

    # -- sequences --------------------------------------------------------------------------

    def seq_new(self, namespace: str = "", *, common: bool = False) -> int:
        """Take the lowest free sequence id, as the engine does. Raises NoFreeSequenceError.

        Raises InvalidRequestError for a common sequence with a namespace.
        """
        with self._call():
            if common and namespace:
                raise InvalidRequestError(f"namespace is {namespace!r} with common=True")
            return self._kv.new(None if common else namespace)

    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Let the empty `dst` start with the first `n_tokens` of `src`.

        Raises InvalidRequestError for ids of different namespaces, and KvCacheFullError.
        """
        with self._call():
            self._kv.copy(src, dst, n_tokens)

    def seq_copyable(self, src: int, n_tokens: int) -> int:
        """Return `n_tokens`: a sequence that continues keeps all of its KV."""
        return n_tokens

    def seq_remove(self, seq_id: int, start: int = 0, end: int = -1) -> None:
        """Drop the tokens from `start` on; start 0 also frees the id.

        Raises InvalidRequestError if [start, end) is not the sequence's tail.
        """
        with self._call():
            self._kv.remove(seq_id, start, end)
            if start == 0:
                self._sampling.pop(seq_id, None)

    def seq_length(self, seq_id: int) -> int:
        """Return the number of tokens that the sequence holds."""
        with self._call():
            return self._kv.length(seq_id)

    def seq_exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of blocks that only this sequence holds."""
        with self._call():
            return self._kv.exclusive_blocks(seq_id)

    def seq_match(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Attach the longest cached prefix to an empty sequence; return its length in tokens.

        Whole blocks, at most len(tokens) - 1 tokens.
        """
        with self._call():
            return self._kv.match(seq_id, tokens)

    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Set how the sequence samples. Uses temperature, min_tokens and logprobs only.

        Raises InvalidRequestError for a stop token outside the vocabulary.
        """
        with self._call():
            self._kv.length(seq_id)
            if any(not 0 <= token < self.vocab_size for token in stop_token_ids):
                raise InvalidRequestError(f"stop_token_ids has a token past {self.vocab_size - 1}")
            self._sampling[seq_id] = FakeSampling(
                params or SamplingParams(), seed, n_prompt, frozenset(stop_token_ids)
            )

    def seq_positions(self, seq_id: int, positions: NDArray[np.int32]) -> None:
        """Check the rope positions (n, 3) of the sequence's first tokens, which change nothing."""
        with self._call():
            self._kv.length(seq_id)
            if positions.ndim != 2 or positions.shape[1] != _ROPE_AXES:
                raise InvalidRequestError(f"positions are of shape {positions.shape}")

    def restart(self) -> None:
        """Forget every sequence and all cached KV; the counters of `statistics()` stay."""
        with self._call():
            self._kv = self._empty_kv()
            self._sampling.clear()
            self._tiles = ()
            self._contents.clear()

    # -- compute ----------------------------------------------------------------------------

    def step(self, plan: StepPlan) -> StepResult:
        """Run one forward pass. Sleeps `step_delay` first, with the GIL released.

        Raises what `before_step` raises, InvalidRequestError, RequestTooLongError and
        KvCacheFullError.
        """
        return self._step(plan)

    def prefill_chunk(
        self, seq_id: int, tokens: Sequence[int], *, logits: bool = False
    ) -> NDArray[np.float32] | None:
        """Append tokens; return the logits of the last row, (vocab_size), if `logits` is set."""
        import numpy as np

        entry = StepEntry(seq_id, _ids(tokens), False)
        self._step(_plan(entry), raises=logits)
        if not logits:
            return None
        self._logits_rows += 1
        return np.array(self._model.logits(self._tokens(seq_id)), np.float32)

    def decode_batch(
        self, seq_ids: Sequence[int], tokens: Sequence[int], *, logits: bool = False
    ) -> NDArray[np.int32] | tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Append one token to each sequence and sample the next: (n); logits (n, vocab_size)."""
        import numpy as np

        if len(seq_ids) != len(tokens):
            raise InvalidRequestError(f"{len(tokens)} tokens for {len(seq_ids)} sequences")
        pairs = zip(_ids(seq_ids), _ids(tokens), strict=True)
        entries = [StepEntry(seq_id, (token,), True) for seq_id, token in pairs]
        sampled = self._step(_plan(*entries), raises=True).sampled
        drawn = np.array([sampled[entry.seq_id][0].token_id for entry in entries], np.int32)
        if not logits:
            return drawn
        rows = [self._model.logits(self._tokens(entry.seq_id)) for entry in entries]
        return drawn, np.array(rows, np.float32)

    def embed(
        self, seq_id: int, tokens: Sequence[int], pooling: str = "mean"
    ) -> NDArray[np.float32]:
        """Append tokens; return their states as one vector, (hidden_size)."""
        import numpy as np

        if pooling not in _POOLINGS:
            raise InvalidRequestError(f"pooling is {pooling!r}; it must be one of {_POOLINGS}")
        entry = StepEntry(seq_id, _ids(tokens), False, pooling=cast("Pooling", pooling))
        return np.array(self._step(_plan(entry), raises=True).embeddings[seq_id], np.float32)

    def _step(self, plan: StepPlan, *, raises: bool = False) -> StepResult:
        """Compute the plan. raises: raise EngineError for a failed sequence, before appending."""
        with self._call():
            self.plans.append(plan)
            if self.before_step is not None:
                self.before_step(plan)
            if self.step_delay:
                time.sleep(self.step_delay)
            encoded = None if plan.encode is None else self._encode(plan.encode)
            self._check(plan)
            self._kv.check_room({entry.seq_id: entry.tokens for entry in plan.entries})
            failed = dict(self.fail_sequences(plan)) if self.fail_sequences is not None else {}
            if failed and raises:
                seq_id, why = next(iter(failed.items()))
                raise EngineError(f"sequence {seq_id}: {why}")
            sampled: dict[int, tuple[SampledToken, ...]] = {}
            logprobs: dict[int, tuple[float, ...]] = {}
            top_logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
            embeddings: dict[int, array[float]] = {}
            for entry in plan.entries:
                self._kv.append({entry.seq_id: entry.tokens[: len(entry.tokens) - entry.n_draft]})
                self._computed_tokens += len(entry.tokens)
                self._proposed_tokens += entry.n_draft
                self._logits_rows += entry.n_draft + entry.sample + len(entry.targets)
                if entry.seq_id in failed:
                    continue
                if entry.sample:
                    sampled[entry.seq_id] = self._draw_all(entry)
                    self._sampled_tokens += len(sampled[entry.seq_id])
                if entry.targets:
                    places = self._places(entry)
                    logprobs[entry.seq_id] = tuple(starmap(self._model.logprob, places))
                    if entry.n_top:
                        tops = (self._model.top(before, entry.n_top) for before, _ in places)
                        top_logprobs[entry.seq_id] = tuple(tops)
                if entry.pooling:
                    embeddings[entry.seq_id] = self._pool(entry)
            self._progress += 1
            return StepResult(
                sampled,
                failed,
                logprobs,
                embeddings,
                top_logprobs=top_logprobs,
                encoded=encoded,
            )

    def _encode(self, work: EncodeWork) -> tuple[NDArray[np.float32] | str, ...] | None:
        """Encode tiles; each row is a whole number below 2**24, which float32 can hold."""
        import numpy as np

        if work.begin:
            n_patches = sum(len(tile.pixels) for tile in work.begin)
            if n_patches > self.tower_rows:
                raise InvalidRequestError(f"{n_patches} patches for {self.tower_rows} rows")
            self._tiles = work.begin
            self._row_layers_left = n_patches * self.tower_layers
        if not self._tiles:
            raise InvalidRequestError("the tower has no tiles")
        self._row_layers_left -= work.row_layers
        if self._row_layers_left > 0:
            return None
        tiles, self._tiles = self._tiles, ()
        rows = ([[hash_of_row(tile.digest, i)] for i in range(tile.n_tokens)] for tile in tiles)
        return tuple(np.array(of_tile, np.float32) for of_tile in rows)

    # -- properties -------------------------------------------------------------------------

    @property
    def block_size(self) -> int:
        """Number of positions in a block."""
        return self._kv.block_size

    @property
    def n_parallel(self) -> int:
        """Largest number of sequences in use."""
        return self._kv.n_parallel

    @property
    def kv_total_blocks(self) -> int:
        """Number of all blocks."""
        return self._kv.n_blocks

    @property
    def kv_free_blocks(self) -> int:
        """Number of blocks that hold no tokens. Never waits. Raises EngineError after `close`."""
        self._check_open()
        return self._kv.free_blocks

    @property
    def kv_cached_blocks(self) -> int:
        """Number of blocks that no sequence holds, kept for `seq_match`.

        Never waits. Raises EngineError after `close`.
        """
        self._check_open()
        return self._kv.cached_blocks

    @property
    def kv_appendable_blocks(self) -> int:
        """Number of free and cached blocks. Never waits. Raises EngineError after `close`."""
        return self.kv_free_blocks + self.kv_cached_blocks

    kv_most_appendable_blocks = kv_total_blocks
    takes_drafts = True
    tower_layers = 3
    tower_row_cost = 0.25

    @property
    def progress(self) -> int:
        """Number of steps computed. Never waits, never raises."""
        return self._progress

    @property
    def used_sequences(self) -> int:
        """Number of sequence ids in use."""
        return self._kv.used_sequences

    def statistics(self) -> dict[str, int]:
        """Return the counters since the engine was made."""
        return {
            "forward_passes": len(self.plans),
            "computed_tokens": self._computed_tokens,
            "logits_rows": self._logits_rows,
            "sampled_tokens": self._sampled_tokens,
            "proposed_tokens": self._proposed_tokens,
            "accepted_tokens": self._accepted_tokens,
        }

    def description(self) -> dict[str, str | int]:
        """Return the dtypes and the device, as `pybatcher info` shows them."""
        return {"dtype": "none", "kv_dtype": "none", "cpu_target": "fake", "device": "cpu"}

    def check_integrity(self) -> None:
        """Raise EngineError if the KV bookkeeping is inconsistent."""
        with self._call():
            self._kv.check_integrity()

    def close(self) -> None:
        """Close the engine: every later call but `close` raises EngineError."""
        self.closed = True

    # -- inside -----------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._check_open()
        if not self._one_call.acquire(blocking=False):
            raise EngineError("the engine takes one call at a time, and one is under way")
        try:
            yield
        finally:
            self._one_call.release()

    def _check_open(self) -> None:
        if self.closed:
            raise EngineError("the engine is closed")

    def _check(self, plan: StepPlan) -> None:
        def refuse(why: str) -> None:
            raise InvalidRequestError(f"seq_id {entry.seq_id} {why}")

        if not plan.entries and plan.encode is None:
            raise InvalidRequestError("the step has no entries; it must have one or more")
        seen: set[int] = set()
        for entry in plan.entries:
            n_tokens, vocabulary = len(entry.tokens), range(self.vocab_size)
            self._kv.length(entry.seq_id)
            if entry.seq_id in seen:
                refuse("is in the step twice")
            seen.add(entry.seq_id)
            if not entry.tokens:
                refuse("has no tokens")
            tokens = self._note_images(entry)
            if not all(token in vocabulary for token in (*tokens, *entry.targets)):
                refuse("has a token or target that is not in the vocabulary")
            if not 0 <= entry.n_draft <= (n_tokens - 1) * entry.sample:
                refuse(f"cannot have {entry.n_draft} draft tokens")
            if len(entry.targets) > n_tokens:
                refuse(f"has {len(entry.targets)} targets for {n_tokens} tokens")
            if entry.pooling not in (None, *_POOLINGS):
                refuse(f"has pooling {entry.pooling!r}; it must be one of {_POOLINGS}")
            if entry.sample and (entry.targets or entry.pooling):
                refuse("samples, and cannot ask for log-probabilities or pooling too")

    def _note_images(self, entry: StepEntry) -> list[int]:
        """Keep the contents of the entry's images by their ids; return its other tokens.

        Raises InvalidRequestError if an id stands for two contents.
        """
        images = dict[int, int]()
        for offset, rows in entry.images:
            images |= {offset + i: int(row[0]) for i, row in enumerate(rows)}
        for i, content in images.items():
            token = entry.tokens[i]
            if token < FIRST_IMAGE_ID or self._contents.setdefault(token, content) != content:
                raise InvalidRequestError(f"token {token} has the row of another image")
        return [token for i, token in enumerate(entry.tokens) if i not in images]

    def _tokens(self, seq_id: int) -> list[int]:
        """Return the tokens of a sequence, with the content of each row of an image for its id."""
        return [self._contents.get(token, token) for token in self._kv.tokens(seq_id)]

    def _draw_all(self, entry: StepEntry) -> tuple[SampledToken, ...]:
        """Sample a token, and one more after each accepted draft token, which it appends."""
        drawn = [self._draw(entry, ())]
        for draft in entry.tokens[len(entry.tokens) - entry.n_draft :]:
            if draft != drawn[-1].token_id:
                break
            self._kv.append({entry.seq_id: (draft,)})
            self._accepted_tokens += 1
            drawn.append(self._draw(entry, [one.token_id for one in drawn]))
        return tuple(drawn)

    def _draw(self, entry: StepEntry, drawn: Sequence[int]) -> SampledToken:
        """Sample the next token, or take the one that the entry's matcher chooses.

        drawn: the tokens that this step has sampled for the sequence.
        """
        chosen: int | None = None
        if isinstance(entry.matcher, NextToken):
            chosen = entry.matcher.next_token((*entry.output, *drawn))
        sampling = self._sampling.get(entry.seq_id, _NOT_SET)
        return self._model.draw(self._tokens(entry.seq_id), sampling, chosen)

    def _places(self, entry: StepEntry) -> list[tuple[list[int], int]]:
        """Append the entry's tokens; return each target with the tokens before it."""
        tokens = self._tokens(entry.seq_id)
        first = len(tokens) - len(entry.targets) + 1
        return [(tokens[: first + i], target) for i, target in enumerate(entry.targets)]

    def _pool(self, entry: StepEntry) -> array[float]:
        tokens = self._tokens(entry.seq_id)
        first = len(tokens) - (1 if entry.pooling == "last" else len(entry.tokens))
        return self._model.pooled(tokens[: first + 1] if entry.pooling == "cls" else tokens, first)


def hash_of_row(digest: bytes, index: int) -> int:
    """Return the content of a row of the tile with this digest, below 2**24."""
    return int.from_bytes(blake2b(digest + index.to_bytes(4, "little"), digest_size=3).digest())


_ROPE_AXES = 3
_NOT_SET = FakeSampling()
"""The sampling of a sequence before its first `seq_sampling`. Made once, since it is validated."""


def _ids(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _plan(*entries: StepEntry) -> StepPlan:
    return StepPlan(entries, 0, sum(len(entry.tokens) for entry in entries))
