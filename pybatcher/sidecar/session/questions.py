"""`Question`: a request with one answer and no stream. What each method reads, asks and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequestError
from ..protocol.tenant import with_tenant
from ..protocol.wire import (
    RequestId,
    embeddings_to_wire,
    health_to_wire,
    prefix_info_to_wire,
    read_add_prefix,
    read_detokenize,
    read_embed,
    read_remove_prefix,
    read_score,
    read_tokenize,
    scores_to_wire,
    statistics_to_wire,
)
from ..protocol.wire_fields import ASKED
from .resources import SessionResources
from .service import SidecarService

__all__ = ["QUESTIONS", "Question", "QuestionReader"]


@dataclass(frozen=True, slots=True)
class Question:
    """One that was read. `answer`: to be called once; `id`: None: not said."""

    answer: Callable[[], Awaitable[object]]
    id: RequestId | None = None


QuestionReader = Callable[[SidecarService, SessionResources, Sequence[Any]], Question]
"""Makes a question of a request's params. Raises InvalidRequestError."""


def _score(backing: SidecarService, own: SessionResources, params: Sequence[Any]) -> Question:
    asked = read_score(params)
    beside = with_tenant(asked.beside, own.tenant)

    async def answer() -> object:
        scores = await backing.score(asked.prompt, asked.continuations, beside)
        return scores_to_wire(scores)

    return Question(answer, asked.id)


def _embed(backing: SidecarService, own: SessionResources, params: Sequence[Any]) -> Question:
    asked = read_embed(params)
    beside = with_tenant(asked.beside, own.tenant)

    async def answer() -> object:
        return embeddings_to_wire(await backing.embed(asked.texts, asked.pooling, beside))

    return Question(answer, asked.id)


def _tokenize(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    content, is_chat = read_tokenize(params)
    return Question(lambda: backing.tokenize(content, is_chat))


def _detokenize(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    token_ids = read_detokenize(params)
    return Question(lambda: backing.detokenize(token_ids))


def _add_prefix(_: SidecarService, resources: SessionResources, params: Sequence[Any]) -> Question:
    asked = read_add_prefix(params)

    async def answer() -> object:
        info = await resources.add_prefix(asked.prefix, asked.name, asked.namespace)
        return prefix_info_to_wire(info)

    return Question(answer)


def _remove_prefix(
    _: SidecarService, resources: SessionResources, params: Sequence[Any]
) -> Question:
    asked = read_remove_prefix(params)
    return Question(lambda: resources.remove_prefix(str(asked.name), asked.namespace))


def _prefixes(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    async def answer() -> object:
        return [prefix_info_to_wire(info) for info in await backing.prefixes()]

    return Question(answer)


def _statistics(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    async def answer() -> object:
        return statistics_to_wire(await backing.statistics())

    return Question(answer)


def _health(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    async def answer() -> object:
        return health_to_wire(await backing.health())

    return Question(answer)


def _watch(_: SidecarService, resources: SessionResources, params: Sequence[Any]) -> Question:
    wanted = ASKED.flag(params[0] if params else None, "watch")

    async def answer() -> object:
        resources.watch(wanted)
        return wanted

    return Question(answer)


def _reload(backing: SidecarService, _: SessionResources, params: Sequence[Any]) -> Question:
    if len(params) > 1:
        raise InvalidRequestError(f"there are {len(params)} params; they must be [changes?]")
    changes = ASKED.plain(ASKED.map(params[0] if params else {}, "changes"), "changes")
    return Question(lambda: backing.reload(changes))


QUESTIONS: dict[str, QuestionReader] = {
    "add_prefix": _add_prefix,
    "detokenize": _detokenize,
    "embed": _embed,
    "health": _health,
    "prefixes": _prefixes,
    "reload": _reload,
    "remove_prefix": _remove_prefix,
    "score": _score,
    "statistics": _statistics,
    "tokenize": _tokenize,
    "watch": _watch,
}
"""By the name of the method."""
