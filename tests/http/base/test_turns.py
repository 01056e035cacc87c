"""`joined_turn`: neighbours of one role as one message, whatever API they came from."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.http.anthropic import messages_input
from pybatcher.http.anthropic.messages_input import read_turns
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.turns import check_count, joined_turn, lines
from pybatcher.http.openai import responses_input
from pybatcher.http.openai.chat_completions import read_messages
from pybatcher.http.openai.responses_input import read_input

MANY = 1000


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of parts of each turn that is made."""
    sizes: list[int] = []

    def counted(parts: list[dict[str, Any]]) -> dict[str, Any]:
        sizes.append(len(parts))
        return joined_turn(parts)

    for module in (messages_input, responses_input):
        monkeypatch.setattr(module, "joined_turn", counted)
    return sizes


def test_parts_become_one_message_with_what_any_of_them_has() -> None:
    calls = [{"id": "1"}, {"id": "2"}]
    parts: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": calls[:1]},
        {"role": "assistant", "content": "c", "reasoning_content": "d", "tool_calls": calls[1:]},
    ]
    assert joined_turn(parts) == {
        "role": "assistant",
        "content": "b\nc",
        "reasoning_content": "a\nd",
        "tool_calls": calls,
    }
    assert parts[1]["tool_calls"] == calls[:1]
    assert joined_turn(parts[:1]) == parts[0]
    assert joined_turn([{"role": "user", "content": ""}] * 2) == {"role": "user", "content": ""}


def test_lines_are_those_that_are_not_empty() -> None:
    assert lines(["", "a", "", "b", ""]) == "a\nb"
    assert lines([]) == ""


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_many_turns_of_a_role_are_joined_at_once(role: str, joined: list[int]) -> None:
    """Joined one after another, some megabytes of turns took the event loop for minutes."""
    turns = read_turns({"messages": [{"role": role, "content": "a"}] * MANY})
    assert turns == [{"role": role, "content": "\n".join("a" * MANY)}]
    assert joined == [MANY]


def test_many_items_of_the_assistant_are_joined_at_once(joined: list[int]) -> None:
    items = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert read_input(items * MANY) == [
        {"role": "assistant", "content": "\n".join("ab" * MANY)},
    ]
    assert joined == [2 * MANY]


class Unread(dict[str, Any]):
    """A message that nobody may look into."""

    def get(self, *_: Any) -> Any:
        raise AssertionError("it was read")

    values = items = __iter__ = get  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (read_messages, "messages"),
        (lambda given: read_turns({"messages": given}), "messages"),
        (read_input, "input"),
    ],
)
def test_too_many_messages_are_refused_before_they_are_read(read: Any, field: str) -> None:
    """Whoever reads them delays all others: half a million took a second."""
    with pytest.raises(HttpError, match=f"{field} has more than 32768 messages") as raised:
        read([Unread()] * (2**15 + 1))
    assert raised.value.param == field


def test_parts_of_messages_count_at_any_depth() -> None:
    part = {"type": "tool_result", "content": [{"type": "text"}] * 2**14}
    check_count([{"role": "user", "content": [part]}], "it")
    with pytest.raises(HttpError, match="it has more than 32768"):
        check_count([{"role": "user", "content": [part, part]}], "it")
    check_count([{"content": [{"input": {"a": [{}] * 2**16}}]}], "it")  # arguments of a call
