"""`pybatcher chat`: a conversation in the terminal, with streamed answers."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import typer

from ..calls.any_batcher import AnyBatcher
from ..calls.completion import Completion
from ..calls.composed.tool_loop import run_tool
from ..calls.options import TemplateOptions
from ..errors import ConfigError, ConnectionLostError, InvalidRequestError, RequestTooLongError
from ..params import SamplingParams
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from .console import remark, report_error, write, write_foreign
from .conversation import Conversation, Message, image_part
from .options import ModelArgument, ModelOption, SystemPromptOption, chosen_model, takes_options
from .over_socket import SocketOption, open_batcher
from .tools import Tools, load_tools, shown

__all__ = ["chat"]

HINT = (
    "Ctrl-C stops an answer, Ctrl-D leaves, /reset starts over, /trim drops the oldest turns,\n"
    "/save FILE and /load FILE keep the conversation, /image FILE adds an image to the next "
    "question.\n"
)
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
TrimOption = Annotated[
    bool,
    typer.Option(
        "--trim",
        help="Drop the oldest turns when the conversation no longer fits, instead of an error.",
    ),
]
ConversationOption = Annotated[
    str | None,
    typer.Option(
        "--conversation",
        metavar="FILE",
        help="Continue the conversation of this file, if it exists, and write it after each "
        "answer.",
        show_default=False,
    ),
]
ImageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="An image for the first question: PNG, JPEG, WebP, GIF or BMP. Several times for "
        "several images.",
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
    trim: TrimOption = False,
    conversation: ConversationOption = None,
    image: ImageOption = None,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Talk with the model. Ctrl-C stops an answer, Ctrl-D leaves.

    It is sampled as its own files recommend, else with a temperature of 0.7 and a
    min_p of 0.05, unless options say otherwise.
    Reasoning is shown on stderr, and so are calls of tools with their results.
    """
    path = chosen_model(name, model)
    talk = Talk(
        SamplingParams.for_chat(**sampling),
        {} if tools is None else load_tools(tools),
        enable_thinking,
        max_reasoning_tokens,
        trim,
        [image_part(os.path.expanduser(one)) for one in image or ()],
    )
    talked = Conversation()
    if conversation is not None and os.path.exists(conversation):
        talked.load(conversation)
    # The loop runs only while an answer streams, not while the user types: reading a line needs no
    # thread, and the runner turns Ctrl-C into the cancellation of that answer.
    with asyncio.Runner() as runner:
        batcher = runner.run(open_batcher(socket, path, system_prompt, options))
        try:
            _converse(runner, batcher, talk, talked, conversation)
        finally:
            runner.run(batcher.close())


@dataclass(frozen=True, slots=True)
class Talk:
    """The options of the model's answers. trims: whether old turns are dropped without request.

    images: the parts with images of the next question.
    """

    params: SamplingParams
    tools: Tools
    enable_thinking: bool | None
    max_reasoning_tokens: int | None
    trims: bool = False
    images: list[Message] = field(default_factory=list)

    @property
    def template(self) -> TemplateOptions:
        """The options that the chat template sees."""
        tools = list(self.tools.values()) or None
        return {"tools": tools, "enable_thinking": self.enable_thinking}

    def content_of(self, line: str) -> Any:
        """Return the content of a question, with the images that wait for it."""
        images = list(self.images)
        self.images.clear()
        return [*images, {"type": "text", "text": line}] if images else line


def _converse(
    runner: asyncio.Runner,
    batcher: AnyBatcher,
    talk: Talk,
    talked: Conversation,
    path: str | None,
) -> None:
    """Answer the lines of stdin. path: the file that keeps the conversation; None: no file."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # some builds of Python lack it
            importlib.import_module("readline")  # gives input() line editing and a history
        write(HINT)
    while (line := _read_line(interactive)) is not None:
        try:
            if not line or _obeyed(line, runner, batcher, talk, talked):
                continue
            asked = [*talked.sent, {"role": "user", "content": talk.content_of(line)}]
            answers = _answer(runner, batcher, asked, talk)
            if answers:
                talked.add(asked, answers)
                if path is not None:
                    talked.save(path)
        except ConfigError as error:  # of a file; the conversation goes on
            report_error(str(error))


def _obeyed(
    line: str, runner: asyncio.Runner, batcher: AnyBatcher, talk: Talk, talked: Conversation
) -> bool:
    """Obey a command and return True; False for a line that is none."""
    command, _, file = line.partition(" ")
    file = os.path.expanduser(file.strip())
    if line == "/reset":
        talked.clear()
        talk.images.clear()
    elif command == "/image":
        talk.images.append(image_part(file))
        remark(f"images of the next question: {len(talk.images)}\n")
    elif line == "/trim":
        _trim(runner, batcher, talk, talked)
    elif command in ("/save", "/load"):
        if not file:
            raise ConfigError(f"{command} needs the name of a file: {command} FILE")
        if command == "/save":
            talked.save(file)
        else:
            talked.load(file)
        remark(f"{len(talked.messages)} messages\n")
    else:
        return False
    return True


def _trim(runner: asyncio.Runner, batcher: AnyBatcher, talk: Talk, talked: Conversation) -> None:
    """Drop the oldest turns, so that half of a sequence is free."""
    try:
        runner.run(_drop_turns(batcher, talked.sent, talk, is_asked_for=True))
    except KeyboardInterrupt:
        pass
    except (InvalidRequestError, ConnectionLostError) as error:
        report_error(str(error))


async def _drop_turns(
    batcher: AnyBatcher, messages: list[Message], talk: Talk, is_asked_for: bool = False
) -> None:
    """Drop the oldest of the messages, if they leave too little room for an answer.

    Half of a sequence is free then, if the last turn allows it: the next questions find the rest
    in the cache.
    """
    if not messages:
        return
    n_positions = (await batcher.model_info()).max_sequence_length
    half = max(n_positions // 2, 1)
    room = min(talk.params.max_tokens, half)
    n_tokens = len(await batcher.tokenize(messages, **talk.template))
    if not is_asked_for and n_tokens + room <= n_positions:
        return
    try:
        kept = await batcher.trim(messages, half, **talk.template)
    except RequestTooLongError:
        kept = await batcher.trim(messages, room, **talk.template)
    remark(f"{len(messages) - len(kept)} of {len(messages)} messages dropped\n")
    messages[:] = kept


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
        report_error(f"{error} (/trim drops the oldest turns, /reset starts the conversation over)")
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
    if talk.trims:
        await _drop_turns(batcher, messages, talk)
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
        **talk.template,
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
