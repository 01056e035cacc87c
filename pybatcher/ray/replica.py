"""`Replica`: one batcher in a process of its own, behind the methods that Ray Serve calls."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from ..batcher import Batcher
from ..calls.call import CallOptions, CallService
from ..calls.completion import Completion, Piece
from ..calls.reply import Reply
from ..errors import EngineFailedError, PybatcherError
from ..errors.distribution import version
from ..sidecar.protocol.codecs import METHODS
from ..sidecar.protocol.wire import completion_to_wire, delta_of, error_to_wire, read_call
from ..sidecar.protocol.wire_images import read_references, unpacked
from .held_prefixes import HeldPrefixes
from .prefix_hashes import prefix_hashes
from .replicas import AHEAD, FULL, Message, Params, WithImages, plain_params

__all__ = ["Replica", "fingerprint_of"]

_LOGGER = logging.getLogger("pybatcher")
_PROBED = 64
_OWN_NAMESPACE = "pybatcher fingerprint"
_NOT_OF_BITS = ("n_threads", "n_ctx", "kv_bytes", "kv_windows", "kv_states", "weights_cache")


class Replica:
    """A batcher whose answers are messages of `replicas.py`, with the reports for its routers.

    It refuses requests beyond AHEAD. Ray's own limit also counts questions, and questions without
    computation, such as health probes, must not wait for other calls to end.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._fingerprint = ""
        self._held = HeldPrefixes(0)
        self._most = 0  # before the start
        self._taken = 0

    async def start(self) -> None:
        """Open the model, and compute the fingerprint that replicas must share."""
        await self._batcher.start()
        self._most = AHEAD * self._batcher._n_parallel
        engine: Any = self._batcher.runtime.engine
        self._held = HeldPrefixes(engine.kv_total_blocks)
        self._fingerprint = await fingerprint_of(self._batcher)
        _LOGGER.info("a replica has started: %s", self._fingerprint)

    # -- calls ------------------------------------------------------------------------------

    async def stream(
        self, method: str, params: Params, *, prefix: bytes = b"", fingerprint: str = ""
    ) -> AsyncGenerator[list[Message]]:
        """Serve `generate` or `chat`: yields messages, those of a step together.

        prefix, fingerprint: as in `Routing`. The content of the params is token ids, or messages
            that refer to images.
        """
        if self._taken >= self._most:
            yield [FULL]
            return
        reply = Reply(streams=True)
        request_ids = range(0)
        service: CallService = self._batcher._running_service()
        self._taken += 1
        try:
            self._check_continues(fingerprint)
            call = read_call(plain_params(params), is_chat=method == "chat").call
            if isinstance(params, WithImages):
                call = replace(call, content=_with_images(call.content, params))
            request_ids = await service.submit(call, reply)
            self._held.use(array("Q", prefix))
            yield [("began", self._fingerprint)]
            while not reply.ended or reply.pieces:
                if not reply.pieces:
                    await reply.wait()
                    continue
                pieces = reply.take_pieces()
                yield [("deltas", _deltas(pieces))]
            made = reply.result()
            assert isinstance(made, Completion)
            if not isinstance(params, WithImages):
                tokens: list[int] = [*call.content, *call.output, *made.token_ids]
                self._held.use(prefix_hashes(tokens, call.namespace, self._held.capacity))
            yield [("end", completion_to_wire(made))]
        except PybatcherError as error:
            yield [("error", error_to_wire(error))]
        finally:
            self._taken -= 1
            if not reply.ended:
                service.cancel(request_ids)

    async def ask(self, method: str, params: Params) -> Message:
        """Answer a question of the sidecar's protocol."""
        codec = METHODS[method]
        takes = issubclass(codec.question, CallOptions)  # True if the model computes the answer
        if takes and self._taken >= self._most:
            return FULL
        self._taken += takes
        try:
            question, _ = codec.read(plain_params(params))
            if isinstance(params, WithImages):
                question = replace(question, content=_with_images(question.content, params))
            answer = await self._batcher._running_service().ask(question)
        except PybatcherError as error:
            return "error", error_to_wire(error)
        finally:
            self._taken -= takes
        return "end", codec.answer_to_wire(answer)

    # -- for Ray Serve ----------------------------------------------------------------------

    def check_health(self) -> None:
        """Raise EngineFailedError if requests are not served; Ray then replaces the replica."""
        health = self._batcher.health()
        if not health.ok:
            raise EngineFailedError(f"{health.status}: {health.reason}")

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return the constants of this replica for routers, once at its start."""
        return {"fingerprint": self._fingerprint}

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the repeated report for routers: the blocks that are held, and the load."""
        counts = self._batcher.statistics()
        return {"held": self._held.report(), "ongoing": counts.queued + counts.running}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load for the autoscaling policy.

        queued_tokens: tokens of waiting requests. busy: share of the batch in use, 0 to 1.
        """
        counts = self._batcher.statistics()
        busy = counts.running / self._batcher._n_parallel
        return {"queued_tokens": float(counts.queued_tokens), "busy": busy}

    # -- inside -----------------------------------------------------------------------------

    def _check_continues(self, fingerprint: str) -> None:
        if fingerprint and fingerprint != self._fingerprint:
            raise EngineFailedError(
                "the replica that has drawn the beginning of this output was lost, and no other "
                f"one draws the same tokens: it was {fingerprint!r}, and there is "
                f"{self._fingerprint!r}; run all replicas on machines of one kind, with one model"
            )


def _with_images(content: Any, params: WithImages) -> Any:
    return unpacked(read_references(content, params.images))


def _deltas(pieces: list[Piece]) -> list[dict[str, Any]]:
    return [delta_of(piece) for piece in pieces]


async def fingerprint_of(batcher: Batcher) -> str:
    """Return a text that is equal for replicas that can continue each other's outputs.

    It names the version, the device and its instruction set, and the dtypes; and it has a digest of
    the log-probabilities, bit for bit, that the model assigns to a fixed row of tokens, and of
    their texts. By schedule invariance the bits are equal if these are equal. A file's name, time
    or inode would not do: replicas are on different machines.
    """
    engine: Any = batcher.runtime.engine
    told: dict[str, Any] = dict(engine.description())
    n_tokens = min(_PROBED, engine.max_sequence_length - 1)
    step = max(1, engine.vocab_size // n_tokens)
    tokens = [i * step % engine.vocab_size for i in range(n_tokens)]
    (score,) = await batcher.score(tokens[:1], [tokens[1:]], namespace=_OWN_NAMESPACE)
    digest = hashlib.sha256(await _texts(batcher, tokens))
    digest.update(" ".join(one.hex() for one in score.token_logprobs).encode())
    facts = [f"{name}={told[name]}" for name in sorted(told) if name not in _NOT_OF_BITS]
    return " ".join([version(), *facts, f"bits={digest.hexdigest()[:32]}"])


async def _texts(batcher: Batcher, tokens: list[int]) -> bytes:
    return (await batcher.detokenize(tokens)).encode("utf-8", "replace")
