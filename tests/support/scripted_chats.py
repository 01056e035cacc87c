"""`ScriptedBatcher`: a batcher whose turns of a chat are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pybatcher import Completion, Piece, ToolCall
from pybatcher.calls.completion import Timeline, Usage
from pybatcher.calls.composed.composed_calls import ComposedCalls

__all__ = ["ScriptedBatcher", "turn_of"]


class ScriptedStream:
    """A stream of pieces that are known."""

    def __init__(self, made: Completion, fails: BaseException | None) -> None:
        self._made, self._fails = made, fails
        self.completion: Completion | None = None

    async def __aenter__(self) -> ScriptedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Piece]:
        yield Piece("", (1,), None, reasoning=self._made.reasoning)
        yield Piece(self._made.text, (2,), None)
        if self._fails is not None:
            raise self._fails
        self.completion = self._made


class ScriptedBatcher(ComposedCalls):
    """Answers with turns that are known."""

    def __init__(self, *turns: Completion | BaseException) -> None:
        self.turns = list(turns)
        self.asked: list[list[dict[str, Any]]] = []
        self.options: list[dict[str, Any]] = []

    async def chat(self, messages: Any, params: Any = None, **options: Any) -> Completion:
        self.asked.append(list(messages))
        self.options.append({"tool_choice": None, **options})
        turn = self.turns.pop(0)
        assert isinstance(turn, Completion)
        return turn

    def stream_chat(self, messages: Any, params: Any, **options: Any) -> ScriptedStream:
        self.asked.append(list(messages))
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            return ScriptedStream(turn_of("so far"), turn)
        return ScriptedStream(turn, None)


def turn_of(text: str, *calls: ToolCall, reasoning: str = "") -> Completion:
    times = Timeline(0.0, 0.0, 0.0, 0.0, ())
    reason: Any = "tool_calls" if calls else "stop"
    usage = Usage(1, 0, 1)
    return Completion(text, (1,), reason, usage, times, reasoning=reasoning, tool_calls=calls)
