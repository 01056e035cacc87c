"""`Admission`: who may hold a sequence. Counts whole sequences, so that nobody runs dry."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import InvalidRequestError, KvCacheFullError, NoFreeSequenceError, RequestTooLongError
from .kv_book import KvBook
from .prefix import SharedPrefix, common_length
from .request import Request, RunningRequest

__all__ = ["Admission"]


class Admission:
    """Gives sequences to requests and to shared prefixes, if all they can need is there.

    A request is promised the blocks of its prompt and of all its output; what
    it shares with sequences in use is not counted twice. So a running request
    never lacks KV, and nothing is ever preempted.

    reserved_sequences: sequences of the KvBook that are kept for shared
    prefixes and never given to requests.
    """

    def __init__(self, kv: KvBook, reserved_sequences: int) -> None:
        self._kv = kv
        self._reserved_sequences = reserved_sequences
        self._wanted_prefixes: list[tuple[int, ...]] = []
        self.max_running = kv.n_parallel - reserved_sequences
        self.prefixes: list[SharedPrefix] = []

    def check_can_ever_fit(self, request: Request) -> None:
        """Raise RequestTooLongError for what could not even run alone."""
        kv, n_prompt = self._kv, len(request.prompt)
        if n_prompt >= kv.max_sequence_length:
            raise RequestTooLongError(
                f"prompt has {n_prompt} tokens; a sequence has {kv.max_sequence_length} positions, "
                "one of which the answer needs: shorten the prompt or raise n_ctx"
            )
        _, common = self._longest_prefix(request)
        blocks = self._blocks_of(request) - common // kv.block_size
        room = kv.kv_total_blocks - sum(prefix.reserved_blocks for prefix in self.prefixes)
        if blocks > room:
            raise RequestTooLongError(
                f"prompt ({n_prompt} tokens) and max_tokens ({request.params.max_tokens}) need "
                f"{blocks} KV blocks of {kv.block_size} positions; there are {room}: "
                "lower max_tokens, shorten the prompt or raise n_ctx"
            )

    def want_prefix(self, tokens: tuple[int, ...]) -> None:
        """Note a prefix to share; RequestTooLongError if there is no room for it at all."""
        known = [prefix.tokens for prefix in self.prefixes] + self._wanted_prefixes
        if not tokens or tokens in known:
            return
        if len(known) >= self._reserved_sequences:
            raise NoFreeSequenceError(
                f"all {self._reserved_sequences} sequences for shared prefixes are in use"
            )
        kv = self._kv
        spare_blocks = kv.kv_total_blocks - 1 - sum(map(self._blocks_for, map(len, known)))
        room = min(kv.max_sequence_length - 2, spare_blocks * kv.block_size)
        if len(tokens) > room:
            raise RequestTooLongError(
                f"the shared prefix has {len(tokens)} tokens; there is room for {room}: "
                "shorten it or raise n_ctx"
            )
        self._wanted_prefixes.append(tokens)

    def start_prefixes(self, running: Collection[RunningRequest]) -> bool:
        """Give wanted prefixes their sequences, as far as KV goes. True if there was one."""
        n_before = len(self.prefixes)
        while self._wanted_prefixes:
            tokens = self._wanted_prefixes[0]
            blocks = self._blocks_for(len(tokens))
            if blocks > self._spare_blocks(running):
                break
            seq_id = self._kv.seq_new()
            cached = self._kv.seq_match(seq_id, tokens)
            self.prefixes.append(SharedPrefix(tokens, seq_id, blocks, cached))
            del self._wanted_prefixes[0]
        return len(self.prefixes) > n_before

    @property
    def wants_prefixes(self) -> bool:
        """A prefix still waits for its sequence. Nobody is admitted before it."""
        return bool(self._wanted_prefixes)

    def drop_prefixes(self) -> None:
        """Free the KV of all shared prefixes."""
        while self.prefixes:
            self._kv.seq_remove(self.prefixes.pop().seq_id)

    def admit(self, request: Request, running: Collection[RunningRequest]) -> RunningRequest | None:
        """A sequence that starts with what is known of the prompt; None if it has to wait.

        What is shared with a sequence in use takes no block, and how much that
        is shows only once it is attached: so attach, count, and give it back
        if the rest does not fit. InvalidRequestError for parameters that the
        engine does not take.
        """
        kv, n_prompt = self._kv, len(request.prompt)
        blocks = self._blocks_of(request)
        prefix, common = self._longest_prefix(request)
        if prefix is not None and prefix.num_tokens_to_compute:
            return None
        if blocks - self._blocks_for(n_prompt) > self._spare_blocks(running):
            return None
        seq_id = kv.seq_new(request.namespace)
        cached = kv.seq_match(seq_id, request.prompt)
        if prefix is not None and common > cached:
            if cached:
                kv.seq_remove(seq_id)
                seq_id = kv.seq_new(request.namespace)
            try:
                kv.seq_copy(prefix.seq_id, seq_id, common)
            except KvCacheFullError:
                kv.seq_remove(seq_id)
                return None
            cached = common
        if blocks - self._blocks_for(cached) > self._spare_blocks(running):
            kv.seq_remove(seq_id)
            return None
        try:
            kv.seq_sampling(
                seq_id,
                request.params,
                seed=request.seed,
                n_prompt=n_prompt,
                stop_token_ids=sorted(request.end_token_ids),
            )
        except InvalidRequestError:
            kv.seq_remove(seq_id)
            raise
        return RunningRequest(request, seq_id, blocks, cached)

    def _longest_prefix(self, request: Request) -> tuple[SharedPrefix | None, int]:
        """The shared prefix that gives the prompt most, and how many tokens; one is left over."""
        best, most = None, 0
        if request.namespace == "":
            for prefix in self.prefixes:
                common = common_length(prefix.tokens, request.prompt[:-1])
                if common > most:
                    best, most = prefix, common
        return best, most

    def _spare_blocks(self, running: Collection[RunningRequest]) -> int:
        """Blocks that nobody holds and nobody who runs will still need."""
        promised = sum(
            owner.reserved_blocks - self._blocks_for(owner.num_computed_tokens)
            for owners in (running, self.prefixes)
            for owner in owners
        )
        return self._kv.kv_free_blocks + self._kv.kv_cached_blocks - promised

    def _blocks_of(self, request: Request) -> int:
        return self._blocks_for(request.positions_needed(self._kv.max_sequence_length))

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self._kv.block_size)
