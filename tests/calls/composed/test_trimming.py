"""`trim`: which turns are dropped, and what is never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher import Batcher, InvalidRequestError, RequestTooLongError
from pybatcher.testing import FakeEngine, fake_batcher

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | string }}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def message(role: str, n_characters: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": role[0] * n_characters, **more}


SYSTEM = message("system", 10)
ASKED = [message("user", 10), message("assistant", 10)]
CALLS = [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {}}}]
WITH_TOOLS = [
    message("user", 5),
    message("assistant", 0, tool_calls=CALLS),
    message("tool", 10, tool_call_id="a"),
    message("assistant", 5),
]


async def trimmed(messages: Any, room: Any, **options: Any) -> list[Any]:
    """Of a batcher whose sequences have 128 positions; each character is a token."""
    async with fake_batcher(FakeEngine(n_ctx=128), chat_template=TEMPLATE) as batcher:
        kept = await batcher.trim(messages, room, **options)
        assert len(await batcher.tokenize(kept, **options)) <= 128 - room
        return kept


async def test_a_chat_that_fits_is_unchanged() -> None:
    chat = [SYSTEM, *ASKED * 4, message("user", 10)]  # 100 tokens
    kept = await trimmed(chat, 28)
    assert kept == chat
    assert kept is not chat


@pytest.mark.parametrize(
    ("room", "n_turns"), [(29, 1), (48, 1), (49, 2), (68, 2), (69, 3), (108, 4)]
)
async def test_the_oldest_turns_go_as_many_as_needed(room: int, n_turns: int) -> None:
    chat = [SYSTEM, *ASKED * 4, message("user", 10)]
    kept = await trimmed(chat, room)
    assert kept == [SYSTEM, *chat[1 + 2 * n_turns :]]
    assert all(any(one is other for other in chat) for one in kept)


async def test_calls_go_with_their_results() -> None:
    chat = [*WITH_TOOLS, *ASKED, message("user", 10)]  # 50 tokens
    assert await trimmed(chat, 79) == chat[4:]
    asked_between = [
        message("user", 5),
        message("assistant", 0, tool_calls=CALLS),
        message("user", 5),
        message("tool", 10, tool_call_id="a"),
        message("user", 10),
    ]
    assert await trimmed(asked_between, 100) == asked_between[4:], "one turn, with its result"
    unanswered = [message("user", 5), message("assistant", 5, tool_calls=CALLS), *ASKED, *ASKED]
    assert await trimmed(unanswered, 100) == unanswered[4:]


async def test_messages_of_the_system_stay_wherever_they_are() -> None:
    late, developer = message("system", 5), message("developer", 5)
    chat = [developer, ASKED[0], late, ASKED[1], *ASKED, message("user", 10)]
    assert await trimmed(chat, 108) == [developer, late, message("user", 10)]
    greeted = [message("assistant", 20), message("user", 10)]
    assert await trimmed(greeted, 110) == greeted[1:]


async def test_tools_take_room() -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    chat = [*ASKED, message("user", 10)]
    async with fake_batcher(FakeEngine(n_ctx=1024), chat_template=TEMPLATE) as batcher:
        without = len(await batcher.tokenize(chat))
        both = len(await batcher.tokenize(chat, tools=[add]))
        assert both > without
        room = 1024 - both + 1
        assert await batcher.trim(chat, room) == chat
        assert await batcher.trim(chat, room, tools=[add]) == chat[2:]


async def test_a_chat_that_is_far_too_long() -> None:
    chat = [message("user", 10) for _ in range(2000)]
    assert len(await trimmed(chat, 8)) == 12


async def test_a_last_turn_that_is_too_long_is_an_error() -> None:
    with pytest.raises(RequestTooLongError, match=r"have 110 tokens in .*28 fit") as told:
        await trimmed([SYSTEM, *ASKED, message("user", 100)], 100)
    assert told.value.field == "messages"
    for chat in ([SYSTEM], [message("system", 200)]):
        with pytest.raises(RequestTooLongError, match="last turn"):
            await trimmed(chat, 120)


@pytest.mark.parametrize(
    ("arguments", "message", "field"),
    [
        ({"room": 0}, "room is 0; it must be a whole number from 1 to 127", "room"),
        ({"room": 128}, "room is 128", "room"),
        ({"room": 1.5}, "room is 1.5", "room"),
        ({"room": None}, "room is None", "room"),
        ({"room": True}, "room is True", "room"),
        ({"messages": "hello"}, "messages is 'hello'", "messages"),
        ({"messages": []}, r"messages is \[\]", "messages"),
        ({"messages": [1, 2]}, r"messages\[0\] is 1; it must be a message", "messages[0]"),
        ({"messages": [{"content": "a"}]}, r"messages\[0\].role is None", "messages[0].role"),
        ({"tools": 5}, "tools is 5", "tools"),
        ({"max_tokens": 5}, "unknown option 'max_tokens'", "max_tokens"),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], message: str, field: str) -> None:
    async with fake_batcher(FakeEngine(n_ctx=128), chat_template=TEMPLATE) as batcher:
        with pytest.raises(InvalidRequestError, match=message) as raised:
            await batcher.trim(**{"messages": ASKED, "room": 8, **arguments})
    assert raised.value.field == field


async def test_what_is_trimmed_can_be_answered() -> None:
    asked = [{"role": "user", "content": "Tell me a story. " * 20}]
    chat = [*[*asked, {"role": "assistant", "content": "No."}] * 30, *asked]
    async with Batcher(n_ctx=512, n_parallel=1) as batcher:
        assert len(await batcher.tokenize(chat)) > 512, "tokens are counted, whatever their number"
        with pytest.raises(RequestTooLongError):
            await batcher.chat(chat, max_tokens=100)
        kept = await batcher.trim(chat, room=100)
        assert 1 <= len(kept) < len(chat)
        answer = await batcher.chat(kept, max_tokens=100, ignore_eos=True)
        assert len(answer.token_ids) == 100
