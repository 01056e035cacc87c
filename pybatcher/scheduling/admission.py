"""`Admission`: decides which request gets a sequence, and finds its cached tokens."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import KvCacheFullError, RequestTooLongError
from ..params.config import SchedulerConfig
from .containment import WorkFor
from .kv_allocator import (
    WAY_OUT_FOR_ENCODERS,
    KvAllocator,
    blocks_for,
    free_sequence,
    obtainable_blocks,
    way_out,
)
from .prefix import SharedPrefixes, common_length
from .request import Leader, LiveRequest, Request

__all__ = ["Admission"]


class Admission:
    """Gives a sequence to a request if KV has room for its tokens and for some of its output.

    A request needs room for its prompt, for output that was sampled before it was submitted or
    preempted, and for `output_reserve` tokens of output. Blocks that running requests were promised
    are not room, nor, while any runs, is the watermark.
    """

    def __init__(self, kv: KvAllocator, config: SchedulerConfig, prefixes: SharedPrefixes) -> None:
        self._kv = kv
        self._prefixes = prefixes
        self._output_reserve = config.output_reserve
        self._n_batch = config.n_batch
        self._watermark_blocks = int(config.watermark * kv.kv_total_blocks)

    def check_can_ever_fit(self, request: Request) -> None:
        """Raise RequestTooLongError for a request that could not even run alone."""
        kv, n_prompt = self._kv, len(request.prompt)
        most = min(self._n_batch, kv.max_sequence_length)
        if request.takes_whole and n_prompt > most:
            raise RequestTooLongError(
                f"input too large: it has {n_prompt} tokens, and {most} fit: "
                f"{WAY_OUT_FOR_ENCODERS}",
                field=request.where,
            )
        if request.is_whole and n_prompt > self._n_batch:
            raise RequestTooLongError(
                f"input too large: it has {n_prompt} tokens, and {request.pooling} pooling takes "
                f"them in one step, which has n_batch = {self._n_batch} rows: shorten it, raise "
                'n_batch, or ask for pooling="last"',
                field=request.where,
            )
        if n_prompt + request.samples > kv.max_sequence_length:
            for_answer = ", one of which the answer needs" if request.samples else ""
            n_tokens = n_prompt + bool(request.targets)  # the last target needs no position
            shortened = "it" if request.pooling else "the prompt"
            raise RequestTooLongError(
                f"{request.where} has {n_tokens} tokens; a sequence has "
                f"{kv.max_sequence_length} positions{for_answer}: "
                f"{way_out(kv, f'shorten {shortened}')}",
                field=request.where,
            )
        blocks = self._most_blocks(request)
        room = kv.kv_total_blocks - self._prefixes.blocks
        if blocks > room and request.is_whole and kv.kv_most_appendable_blocks < kv.kv_total_blocks:
            most_at_once = max(kv.kv_most_appendable_blocks - self._prefixes.blocks, 0)
            raise RequestTooLongError(
                f"input too large: it has {n_prompt} tokens, and {request.pooling} pooling takes "
                "them in one step, for which layers with a sliding window have KV for "
                f"{most_at_once * kv.block_size}: shorten "
                'it, raise n_parallel, or ask for pooling="last"',
                field=request.where,
            )
        if blocks > room:
            raise RequestTooLongError(
                f"prompt ({n_prompt} tokens) and max_tokens ({request.params.max_tokens}) need "
                f"{blocks} KV blocks of {kv.block_size} positions; there are {room}: "
                "lower max_tokens, shorten the prompt or raise n_ctx"
            )

    def start_prefixes(
        self, running: Iterable[LiveRequest], admitted: Iterable[LiveRequest]
    ) -> None:
        """Give waiting shared prefixes their sequences, as far as KV suffices.

        A prefix keeps its KV until it is removed. It gets a sequence only if each of `admitted`
        could still run alone beside it.
        """
        waiting = self._prefixes.waiting
        if not waiting:
            return
        kv = self._kv
        spare = self._spare_blocks(running)
        most = 0
        with WorkFor("make room for a shared prefix beside it") as work:
            for work.owner in admitted:
                most = max(most, self._most_blocks(work.owner.request))
        room = kv.kv_total_blocks - most - self._prefixes.blocks
        room += sum(self._blocks_for(len(prefix.tokens)) for prefix in waiting)
        for prefix in waiting:
            blocks = self._blocks_for(len(prefix.tokens))
            spare, room = spare - blocks, room - blocks
            if spare < 0 or room < 0:
                break
            with WorkFor("give it a sequence", prefix):
                self._prefixes.start(prefix)

    def admit(
        self,
        live: LiveRequest,
        running: Iterable[LiveRequest],
        leaders: Iterable[LiveRequest],
        *,
        alone: bool,
    ) -> bool:
        """Give the request a sequence with its cached tokens; False if it has to wait.

        Tokens that are shared with a sequence in use take no block, and their number is known only
        after they are attached. Therefore this method attaches them, counts blocks, and frees the
        sequence if the rest does not fit. A shared prefix, or one of `leaders` (requests whose
        prompts are being computed), that will have more of its tokens becomes its leader.

        alone: no other request runs; then only the request's own tokens have to fit.
        Raises any error of the work for this or another request; the request then has no sequence.
        """
        tokens = live.tokens
        blocks = self._blocks_for(live.promised_tokens(self._output_reserve))
        spare = self._spare_blocks(running) - (0 if alone else self._watermark_blocks)
        if alone:
            blocks = min(blocks, self._blocks_for(len(tokens)))
        if blocks - self._blocks_for(len(tokens)) > spare:
            return False
        try:
            fits = self._attach(live, running, leaders, blocks, alone=alone)
        except Exception:
            if live.seq_id >= 0:
                self.forget(live)
            raise
        if not fits:
            self.forget(live)
        return fits

    def join(self, live: LiveRequest) -> bool:
        """Copy the KV that the request's leader computes; False until it is computed.

        If the leader has lost its KV, the part that is still cached is attached. If layers with a
        sliding window have freed KV that the request attends to, as much as possible is copied.
        """
        leader, kv = live.leader, self._kv
        if leader is None:
            return True
        if leader.seq_id < 0:
            live.num_computed_tokens = kv.seq_match(live.seq_id, live.shareable_tokens)
        elif leader.num_computed_tokens < live.num_led_tokens:
            return False
        else:
            n_led = kv.seq_copyable(leader.seq_id, live.num_led_tokens)
            try:
                kv.seq_copy(leader.seq_id, live.seq_id, n_led)
            except KvCacheFullError:  # no block for the copy of a partial one
                n_led = kv.seq_copyable(leader.seq_id, n_led - n_led % kv.block_size)
                kv.seq_copy(leader.seq_id, live.seq_id, n_led)
            live.num_computed_tokens = n_led
        live.leader = None
        return True

    def forget(self, live: LiveRequest) -> None:
        """Free the request's sequence. Raises EngineFailedError if the engine does not free it."""
        seq_id, live.seq_id = live.seq_id, -1
        live.leader, live.num_computed_tokens = None, 0
        free_sequence(self._kv, seq_id)

    def _attach(
        self,
        live: LiveRequest,
        running: Iterable[LiveRequest],
        leaders: Iterable[LiveRequest],
        blocks: int,
        *,
        alone: bool,
    ) -> bool:
        """Take a sequence, attach cached tokens, and count again; False if `blocks` do not fit."""
        kv, request = self._kv, live.request
        live.seq_id = kv.seq_new(request.namespace)
        shareable = live.shareable_tokens
        cached = kv.seq_match(live.seq_id, shareable)
        leader, n_led = self._best_leader(live, shareable, cached, leaders)
        if leader is not None:
            self.forget(live)
            live.seq_id = kv.seq_new(request.namespace)
            live.leader, live.num_led_tokens = leader, n_led
            cached = 0
            shared_blocks = n_led // kv.block_size
        else:
            shared_blocks = self._blocks_for(cached)
        spare = self._spare_blocks(running) - (0 if alone else self._watermark_blocks)
        if blocks - shared_blocks > spare:
            return False
        kv.seq_sampling(
            live.seq_id,
            request.params,
            seed=request.seed,
            n_prompt=len(request.prompt),
            stop_token_ids=sorted(request.end_token_ids),
        )
        if request.images is not None and request.images.positions is not None:
            kv.seq_positions(live.seq_id, request.images.positions.T)
        live.num_computed_tokens = cached
        return True

    def _best_leader(
        self,
        live: LiveRequest,
        tokens: tuple[int, ...],
        n_cached: int,
        leaders: Iterable[LiveRequest],
    ) -> tuple[Leader | None, int]:
        """Return the owner that has or will have more leading tokens than the cache, and how many.

        The last token never counts. Waiting for another request pays if it saves a block, or all
        tokens that can be saved; waiting for a shared prefix always pays.
        """
        best: Leader | None
        best, most = self._prefixes.longest(tokens, live.request.namespace)
        if best is None or best.seq_id < 0 or most <= n_cached:
            best, most = None, n_cached
        with WorkFor("let another follow it") as work:
            for work.owner in leaders:
                common = min(common_length(work.owner.tokens, tokens), len(tokens) - 1)
                is_all = common > most and common == len(tokens) - 1
                if is_all or common >= most + self._kv.block_size:
                    best, most = work.owner, common
        return best, most

    def _spare_blocks(self, running: Iterable[LiveRequest]) -> int:
        """Return the number of blocks that no sequence holds and no request was promised."""
        block_size, reserve = self._kv.block_size, self._output_reserve
        promised = 0
        with WorkFor("count what it was promised") as work:
            for work.owner in running:
                live = work.owner
                is_led = live.leader is not None
                computed = live.num_led_tokens if is_led else live.num_computed_tokens
                promised += blocks_for(live.promised_tokens(reserve), block_size)
                promised -= blocks_for(computed, block_size)
        with WorkFor("count what it was promised") as work:
            for work.owner in self._prefixes:
                if work.owner.seq_id >= 0:
                    promised += self._blocks_for(work.owner.num_tokens_to_compute)
        return obtainable_blocks(self._kv) - promised

    def _most_blocks(self, request: Request) -> int:
        """Return the most blocks that a request can need, without those of a shared prefix."""
        n_own = max(len(request.targets), 1)
        shareable = request.prompt[: 1 if request.is_whole else len(request.prompt) - n_own + 1]
        _, common = self._prefixes.longest(shareable, request.namespace)
        positions = request.positions_needed(self._kv.max_sequence_length)
        own = self._blocks_for(positions) - common // self._kv.block_size
        if request.is_whole:  # in one step, for which layers with a window may have fewer blocks
            own += self._kv.kv_total_blocks - self._kv.kv_most_appendable_blocks
        return own

    def _blocks_for(self, positions: int) -> int:
        return blocks_for(positions, self._kv.block_size)
