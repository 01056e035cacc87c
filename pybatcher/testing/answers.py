"""`Answers`: the outputs that a test chooses for a `fake_batcher`.

`AnsweringReader` checks them against the constraints of the calls and makes tokens of them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from typing_extensions import override

from ..calls.call import Call
from ..errors import ConfigError, PybatcherError
from ..errors.checks import plain_text, short, type_name
from ..params import SamplingParams, StructuredOutput
from ..serving.call_reader import CallReader, ReadCall
from ..serving.runtime import Runtime
from ..text.grammars import OutputMatcher
from ..text.output import (
    parse_response,
    read_tools,
    schemas_of,
    write_response,
)
from ..text.plain_values import is_unicode
from .chosen_tokens import ScriptedTokens, ValidTokens

__all__ = ["Answer", "AnsweringReader", "Answers", "FakeAnswerError"]

Answer = str | Mapping[str, Any]
"""A text, or an assistant's message as `Completion.message` and OpenAI's API have it: `content`,
`reasoning_content` and `tool_calls`.
"""

AnswerSource = Sequence[Answer] | Callable[[Any], Answer | Awaitable[Answer]]
"""Answers in their order, or a function that gets the messages of a chat, or a prompt."""

_WANTED = "a list of texts and messages, or a function that makes one of messages or a prompt"


class FakeAnswerError(PybatcherError):
    """An answer of a `fake_batcher` is none that a model could give to this call.

    It is a mistake of the test. The call that would get the answer raises it.
    """


class Answers:
    """Answers by their order, or by a function.

    given: texts and messages, or a function. A list has one for each output, in the order in which
        calls are made.

    Raises ConfigError for anything else.
    """

    def __init__(self, given: object) -> None:
        if plain_text(given) is not None or not (
            isinstance(given, (list, tuple)) or callable(given)
        ):
            raise ConfigError(f"answers is {short(given)}; it must be {_WANTED}", field="answers")
        self._function = None if isinstance(given, (list, tuple)) else cast(Any, given)
        self._listed: tuple[Answer, ...] = ()
        if isinstance(given, (list, tuple)):
            self._listed = tuple(
                _checked(one, f"answers[{i}]", ConfigError) for i, one in enumerate(given)
            )
        self._n_used = 0

    async def next(self, content: Any) -> tuple[Answer, str]:
        """Return the next answer, and its name in errors.

        content: the messages or the prompt of the call. Raises FakeAnswerError if there are no
        more, or if the function returns something else; and what the function raises.
        """
        if self._function is not None:
            made = self._function(content)
            if inspect.isawaitable(made):
                made = await made
            where = "the answer of the function"
            return _checked(made, where, FakeAnswerError), where
        place = self._n_used
        if place >= len(self._listed):
            raise FakeAnswerError(
                f"answers has {len(self._listed)}, and this is output {place + 1}: give an answer "
                "for each output, or a function that makes them",
                field="answers",
            )
        self._n_used += 1
        return self._listed[place], f"answers[{place}]"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The call that an answer is for, and its constraints.

    form: the structured output of the whole response. text_form: that of its text.
    in_reasoning: the prompt ended inside reasoning.
    """

    call: Call
    form: StructuredOutput | None
    text_form: StructuredOutput | None
    in_reasoning: bool


class AnsweringReader(CallReader):
    """A reader of calls whose outputs are chosen: by answers, or any that a constraint allows.

    answers: None: outputs with a constraint are valid ones, and all others are free.
    The arguments of `CallReader` follow.
    """

    def __init__(
        self,
        answers: Answers | None,
        runtime: Runtime,
        system_prompt: str | None,
        share: Callable[[tuple[int, ...]], object],
        start_over: Callable[[], object],
    ) -> None:
        super().__init__(runtime, system_prompt, share, start_over)
        self._answers = answers
        self._tokenizer = runtime.tokenizer
        self._format = runtime.response_format
        ends = sorted(one for one in self._eos_token_ids if one < self._vocab_size)
        if answers is not None and not ends:
            raise ConfigError(
                "answers are given, and the tokenizer has no end token; it must have one, or no "
                "answer could end",
                field="answers",
            )
        self._end = ends[0] if ends else 0

    @override
    async def read(self, call: Call, params: SamplingParams, tenant: str = "") -> ReadCall:
        prompt, form, ends, respond = await super().read(call, params, tenant)
        tokens, images = prompt
        plain = tokens if images is None else images.plain(tokens)
        in_reasoning = call.chat is not None and self._chats.begins_inside_reasoning(plain)
        # `matchers` gets it back: all that lies between the two passes it on unread.
        asked = _Asked(call, form, params.form, in_reasoning)
        return prompt, cast("StructuredOutput", asked), ends, respond

    @override
    async def matchers(
        self, form: StructuredOutput | None, n: int, output: tuple[int, ...], tenant: str
    ) -> list[OutputMatcher] | list[None]:
        asked = cast("_Asked", form)
        made = await super().matchers(asked.form, n, output, tenant)
        if self._answers is None:
            chosen: list[Any] = [
                None if one is None else ValidTokens(one, self._tokenizer, self._end)
                for one in made
            ]
            return chosen
        chosen = []
        for matcher in made:
            answer, where = await self._answers.next(asked.call.content)
            text = self._text(answer, where, asked)
            tokens = self._tokenizer.encode(text, add_special_tokens=False)
            if matcher is not None:
                self._check(text, tokens, where, matcher, asked)
            chosen.append(ScriptedTokens((*output, *tokens), self._end))
        return chosen

    def _text(self, answer: Answer, where: str, asked: _Asked) -> str:
        """Return the text that a model would write to give this answer."""
        message = {"content": answer} if isinstance(answer, str) else answer
        content = message.get("content") or ""
        if asked.text_form is not None and asked.text_form.kind in ("json_schema", "json_object"):
            content = _in_one_layout(content)
        reasoning = next(
            (message[key] for key in ("reasoning_content", "reasoning") if message.get(key)), ""
        )
        calls = self._calls(message.get("tool_calls") or (), where, asked)
        if isinstance(answer, str) and any(one in answer for one in self._format.markers):
            return content  # the author writes the syntax of the model
        text = write_response(
            self._format, content, reasoning, calls, in_reasoning=asked.in_reasoning
        )
        if isinstance(answer, str):
            return text
        tools = () if asked.call.chat is None else read_tools(asked.call.chat.tools)
        read = parse_response(
            text, self._format, schemas=schemas_of(tools), in_reasoning=asked.in_reasoning
        )
        found = [(one.name, one.arguments) for one in read.tool_calls]
        for name, given, seen in (
            ("tool_calls", calls, found),
            ("content", content.strip(), read.content.strip()),
            ("reasoning_content", reasoning.strip(), read.reasoning.strip()),
        ):
            if given != seen:
                raise FakeAnswerError(
                    f"{where}.{name} is {short(given)}, and a model of the format "
                    f"{self._format.name!r} cannot write it: it would be read as {short(seen)}. "
                    "Leave a part of the answer out, or give a chat_template of another family",
                    field="answers",
                )
        return text

    def _calls(
        self, given: Sequence[Any], where: str, asked: _Asked
    ) -> list[tuple[str, dict[str, Any]]]:
        tools = () if asked.call.chat is None else read_tools(asked.call.chat.tools)
        names = [tool.name for tool in tools]
        calls = []
        for index, call in enumerate(given):
            function = call.get("function", call) if isinstance(call, Mapping) else {}
            name = function.get("name") if isinstance(function, Mapping) else None
            arguments = function.get("arguments", {}) if isinstance(function, Mapping) else None
            if isinstance(arguments, str):
                arguments = _json_or_none(arguments)
            place = f"{where}.tool_calls[{index}]"
            if not isinstance(name, str) or not isinstance(arguments, Mapping):
                raise FakeAnswerError(
                    f"{place} is {short(call)}; it must be a mapping with the name of a tool and "
                    "its arguments",
                    field="answers",
                )
            if name not in names:
                known = ", ".join(map(repr, names)) or "none"
                raise FakeAnswerError(
                    f"{place}.name is {short(name)}; it must be one of the tools of the call: "
                    f"{known}",
                    field="answers",
                )
            calls.append((name, dict(arguments)))
        return calls

    def _check(
        self,
        text: str,
        tokens: Sequence[int],
        where: str,
        matcher: OutputMatcher,
        asked: _Asked,
    ) -> None:
        """Raise FakeAnswerError for a text that the constraint of the call does not allow."""
        assert asked.form is not None
        own = matcher.matcher
        n_valid = own.validate_tokens(list(tokens))
        if n_valid == len(tokens):
            follower = own.deep_copy()
            follower.consume_tokens(list(tokens))
            if follower.is_accepting() or follower.is_stopped():
                return
        begin = self._tokenizer.decode(tokens[:n_valid])
        rest = text[len(begin) :]
        fault = f"{short(rest)} cannot follow {short(begin[-40:])}" if rest else "it ends too early"
        advice = ""
        if asked.text_form is not None and asked.text_form.kind == "json_schema":
            advice = "; members of objects must have the order of the schema"
        raise FakeAnswerError(
            f"{where} is {short(text)}, which {asked.form.field} of the call does not allow: "
            f"{fault}{advice}",
            field="answers",
        )


def _checked(answer: object, where: str, error: type[PybatcherError]) -> Answer:
    text = plain_text(answer)
    if text is not None:
        if is_unicode(text):
            return text
    elif isinstance(answer, Mapping):
        content, calls = answer.get("content"), answer.get("tool_calls")
        reasoning = [answer.get(key) for key in ("reasoning_content", "reasoning")]
        if (
            all(isinstance(one, (str, type(None))) for one in (content, *reasoning))
            and isinstance(calls, (list, tuple, type(None)))
            and answer.get("role", "assistant") == "assistant"
        ):
            return answer
    raise error(
        f"{where} is {short(answer)}, of type {type_name(answer)}; it must be a text, or an "
        "assistant's message with content, reasoning_content and tool_calls",
        field="answers",
    )


def _in_one_layout(text: str) -> str:
    """Return a JSON text in the layout in which constrained models write; other texts unchanged."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
