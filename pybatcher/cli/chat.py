"""`pybatcher chat`: a conversation in the terminal, with streamed answers."""

from __future__ import annotations

import asyncio
import importlib
import sys
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ..calls.any_batcher import AnyBatcher
from ..calls.completion import Completion
from ..calls.composed.tool_loop import run_tool
from ..errors import ConnectionLostError, InvalidRequestError
from ..params import SamplingParams, left_to_model
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from .console import remark, report_error, write, write_foreign
from .options import ModelArgument, ModelOption, SystemPromptOption, chosen_model, takes_options
from .over_socket import SocketOption, open_batcher
from .tools import Tools, load_tools, shown

__all__ = ["chat"]

HINT = "Ctrl-C stops an answer, Ctrl-D leaves, /reset starts over.\n"
Message = dict[str, Any]
_MOST_ROUNDS = 8  # rounds of tool calls before an answer is given up

ToolsOption = Annotated[
    str | None,
    typer.Option(
        "--tools",
        help="Python functions that the model may call, as 'module:function,function'. They are "
        "run here, with the arguments that the model chooses.",
        show_default=False,
        metavar="<module:functions>",
    ),
]
ThinkingOption = Annotated[
    bool | None,
    typer.Option(
        "--enable-thinking/--disable-thinking",
        help="Whether the model thinks before it answers, if its chat template asks.",
        show_default=False,
    ),
]
ReasoningOption = Annotated[
    int | None,
    typer.Option(
        "--max-reasoning-tokens",
        help="Most tokens of reasoning; then the answer begins.",
        show_default=False,
    ),
]


@takes_options(
    *(SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig),
    only={field.name for field in fields(SamplingParams)} - {"n"},  # a turn has only one answer
)
def chat(
    name: ModelArgument = None,
    model: ModelOption = None,
    system_prompt: SystemPromptOption = None,
    socket: SocketOption = None,
    tools: ToolsOption = None,
    enable_thinking: ThinkingOption = None,
    max_reasoning_tokens: ReasoningOption = None,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Talk with the model. Ctrl-C stops an answer, Ctrl-D leaves.

    It is sampled as its own files recommend, unless options say otherwise.
    Reasoning is shown on stderr, and so are calls of tools with their results.
    """
    path = chosen_model(name, model)
    talk = Talk(
        SamplingParams(**sampling, of_model=left_to_model(sampling)),
        {} if tools is None else load_tools(tools),
        enable_thinking,
        max_reasoning_tokens,
    )
    # The loop runs only while an answer streams, not while the user types: reading a line needs no
    # thread, and the runner turns Ctrl-C into the cancellation of that answer.
    with asyncio.Runner() as runner:
        batcher = runner.run(open_batcher(socket, path, system_prompt, options))
        try:
            _converse(runner, batcher, talk)
        finally:
            runner.run(batcher.close())


@dataclass(frozen=True, slots=True)
class Talk:
    """The options of the model's answers."""

    params: SamplingParams
    tools: Tools
    enable_thinking: bool | None
    max_reasoning_tokens: int | None


def _converse(runner: asyncio.Runner, batcher: AnyBatcher, talk: Talk) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # some builds of Python lack it
            importlib.import_module("readline")  # gives input() line editing and a history
        write(HINT)
    messages: list[Message] = []
    while (line := _read_line(interactive)) is not None:
        if line == "/reset":
            messages.clear()
        elif line:
            asked = [*messages, {"role": "user", "content": line}]
            answers = _answer(runner, batcher, asked, talk)
            if answers:
                messages = [*asked, *answers]


def _read_line(interactive: bool) -> str | None:
    """Read a line; "" if Ctrl-C interrupts it, None at the end of input."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        if interactive:
            write("\n")
        return None
    except KeyboardInterrupt:
        write("\n")
        return ""


def _answer(
    runner: asyncio.Runner, batcher: AnyBatcher, messages: list[Message], talk: Talk
) -> list[Message]:
    """Stream the answer to stdout and return its messages; none if the request failed.

    Ctrl-C ends the answer early; the text so far is returned. Reports the error of a failure.
    """
    answers: list[Message] = []
    try:
        runner.run(_rounds(batcher, messages, talk, answers))
    except KeyboardInterrupt:
        pass
    except InvalidRequestError as error:
        report_error(f"{error} (/reset starts the conversation over)")
        return []
    except ConnectionLostError as error:
        report_error(f"{error} (ask again to have it made anew)")
        return []
    write("\n")
    return answers


async def _rounds(
    batcher: AnyBatcher, messages: list[Message], talk: Talk, answers: list[Message]
) -> None:
    """Append the assistant's turns to `answers`, and the results of the tools that they call."""
    for _ in range(_MOST_ROUNDS):
        made = await _turn(batcher, [*messages, *answers], talk, answers)
        if made.finish_reason != "tool_calls":  # without calls, or with one that was cut
            return
        for call in made.tool_calls:
            result = await run_tool(talk.tools, call)
            remark(shown(call, result) + "\n")
            answers.append({"role": "tool", "tool_call_id": call.id, "content": result})
    report_error(f"the model called tools {_MOST_ROUNDS} times without an answer")


async def _turn(
    batcher: AnyBatcher, messages: list[Message], talk: Talk, answers: list[Message]
) -> Completion:
    """Stream one turn, and append it to `answers`; an interrupted turn as far as it came."""
    turn: Message = {"role": "assistant", "content": ""}
    stream = batcher.stream_chat(
        messages,
        talk.params,
        tools=list(talk.tools.values()) or None,
        enable_thinking=talk.enable_thinking,
        max_reasoning_tokens=talk.max_reasoning_tokens,
    )
    reasons = False
    try:
        async with stream as pieces:
            async for piece in pieces:
                if piece.reasoning:
                    reasons = True
                    remark(piece.reasoning)
                if piece.text:
                    if reasons:
                        reasons = False
                        remark("\n")
                    write_foreign(piece.text)
                    turn["content"] += piece.text
    except BaseException:  # the part that has come stays
        if turn["content"]:
            answers.append(turn)
        raise
    made = stream.completion
    assert made is not None
    answers.append(made.message)
    return made
