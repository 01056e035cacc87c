"""`trim`: drops the oldest turns of a chat that is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import RequestTooLongError
from ...errors.checks import REQUEST
from ..options import TemplateOptions, check_names

if TYPE_CHECKING:
    from ..any_batcher import AnyBatcher

__all__ = ["check_messages", "trim"]

M = TypeVar("M", bound=Mapping[str, Any])

_MOST_MESSAGES = 2**16
_MESSAGE = 'a message {"role": ..., "content": ...}'
_MESSAGES = 'a list of at least one {"role": ..., "content": ...}'
_SYSTEM = ("system", "developer")


def check_messages(messages: object) -> list[Any]:
    """Return a list of the messages, each a mapping. Raises InvalidRequestError."""
    checked = REQUEST.items("messages", messages, _MOST_MESSAGES, _MESSAGES)
    if not checked:
        raise REQUEST.bad("messages", messages, _MESSAGES)
    for index, one in enumerate(checked):
        with REQUEST.reading(f"messages[{index}]", one, _MESSAGE):
            if not isinstance(one, Mapping):
                raise REQUEST.bad(f"messages[{index}]", one, _MESSAGE)
    return list(checked)


async def trim(
    batcher: AnyBatcher, messages: Sequence[M], room: object, options: Mapping[str, Any]
) -> list[M]:
    """Return the messages without their oldest turns. `AnyBatcher.trim` documents the arguments.

    The number of turns to drop is found by bisection, since counting tokens renders the chat.
    """
    check_names(options, TemplateOptions)
    checked = check_messages(messages)
    n_positions = (await batcher.model_info()).max_sequence_length
    wanted = f"a whole number from 1 to {n_positions - 1}, less than the positions of a sequence"
    most = n_positions - REQUEST.whole("room", room, 1, n_positions - 1, wanted)
    if len(await batcher.tokenize(checked, **options)) <= most:
        return checked
    turns = _turns(checked)

    def without(n_turns: int) -> list[M]:
        dropped = {index for turn in turns[:n_turns] for index in turn}
        return [one for index, one in enumerate(checked) if index not in dropped]

    async def n_tokens(n_turns: int) -> int:
        return len(await batcher.tokenize(without(n_turns), **options))

    low, high = 0, max(len(turns) - 1, 0)  # `low` turns are too few; `high` may be enough
    n_left = await n_tokens(high)
    if n_left > most:
        raise RequestTooLongError(
            f"messages have {n_left} tokens in their last turn and the system messages alone; with "
            f"a room of {room} at most {most} fit into the {n_positions} positions of a sequence: "
            "shorten them, ask for less room, or raise n_ctx",
            field="messages",
        )
    while high - low > 1:
        middle = (low + high) // 2
        if await n_tokens(middle) <= most:
            high = middle
        else:
            low = middle
    return without(high)


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the indices of the messages of each turn, without those of system messages.

    A turn begins with a user's message, unless results of earlier calls follow it.
    """
    with REQUEST.reading("messages", messages, _MESSAGES):
        answered = {one.get("tool_call_id") for one in messages if one.get("role") == "tool"}
        pending: set[Any] = set()
        turns: list[list[int]] = []
        for index, one in enumerate(messages):
            role = one.get("role")
            if role in _SYSTEM:
                continue
            if not turns or (role == "user" and not pending):
                turns.append([])
            turns[-1].append(index)
            if role == "tool":
                pending.discard(one.get("tool_call_id"))
            else:
                calls = one.get("tool_calls") or ()
                pending |= {call.get("id") for call in calls} & answered
    return turns
