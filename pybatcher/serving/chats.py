"""`ChatReader`: checks the settings of chats and makes the readers of their responses."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from ..calls.chat_settings import ChatSettings
from ..params import StructuredOutput
from ..text import Tokenizer
from ..text.grammars.probe import is_harmless
from ..text.output import (
    ResponseFormat,
    ResponseParser,
    ToolChoice,
    ToolSpec,
    read_tool_choice,
    read_tools,
    response_grammar,
    schemas_of,
)
from .chat_response import ChatResponse

__all__ = ["Chat", "ChatReader"]

_TAIL = 32  # tokens of a prompt's end that show whether it ends inside reasoning
_ENDS_OF_TURNS = ("<|call|>", "<|return|>", "<|eom_id|>")
_OBJECT = {"type": "object", "additionalProperties": True}
_NO_CALLS = ToolChoice("none", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The checked settings of a chat. reasons: False if reasoning was switched off."""

    tools: tuple[ToolSpec, ...]
    choice: ToolChoice
    parallel: bool
    max_reasoning_tokens: int | None
    variables: Mapping[str, Any]
    reasons: bool = True

    @property
    def forbids_calls(self) -> bool:
        """True if there are tools, and the model may call none."""
        return bool(self.tools) and self.choice.mode == "none"

    def rendered_tools(self) -> list[dict[str, Any]] | None:
        """Return the tools as a chat template expects them; None if the model may call none."""
        if self.forbids_calls:
            return None
        return [tool.as_dict() for tool in self.tools] or None


class ChatReader:
    """Reads the settings of chats, for one model.

    format: the format in which the model writes its responses.
    template: the source of the chat template; "" if the model has none.
    takes_several_calls: tells whether the template takes a message with several calls; a response
        has one call otherwise, so that it can be sent back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: ResponseFormat,
        template: str,
        takes_several_calls: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tokenizer = tokenizer
        self._takes_several_calls = takes_several_calls
        self._format = format
        self.markers = tokenizer.added_token_ids(format.markers)
        """The ids of the format's markers that are single tokens."""
        self.end_token_ids = frozenset(tokenizer.added_token_ids(_ENDS_OF_TURNS).values())
        """Tokens that end a turn, whether or not the checkpoint lists them as end tokens."""
        self._kept_ids = frozenset(self.markers.values())
        opening = format.opening_of_calls
        self._can_forbid = (
            any(opening.startswith(marker) for marker in self.markers)
            and bool(tokenizer.eos_token_ids)
            and find_spec("llguidance") is not None
        )
        """True if a grammar can keep the model from a call: a token opens it, and no text does."""
        self._may_reason = format.harmony or any(
            one.open in self.markers or one.open in template for one in format.think
        )

    def read(self, settings: ChatSettings) -> Chat:
        """Return the checked settings of a chat. Raises InvalidRequestError."""
        tools = read_tools(settings.tools)
        return Chat(
            tools=tools,
            choice=read_tool_choice(settings.tool_choice, tools),
            parallel=settings.is_parallel() and (not tools or self._takes_several_calls()),
            max_reasoning_tokens=settings.reasoning_budget(),
            variables=settings.template_variables(),
            reasons=settings.enable_thinking is not False,
        )

    def begins_inside_reasoning(self, prompt: tuple[int, ...]) -> bool:
        """Return whether the response to a prompt begins inside reasoning."""
        tail = self._tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False)
        return self._format.opens_reasoning(tail)

    def form(
        self, chat: Chat, form: StructuredOutput | None, in_reasoning: bool
    ) -> StructuredOutput | None:
        """Return the structured output of the whole response; None: any text. May take
        milliseconds.

        form: the structured output of the response's text. Raises InvalidRequestError.
        """
        choice = chat.choice
        chosen = choice.tools(chat.tools)
        has_free_calls = (
            choice.mode == "auto" and form is None and not any(tool.strict for tool in chosen)
        )
        if has_free_calls:
            choice = _NO_CALLS
        may_reason = chat.reasons and self._may_reason
        budget = chat.max_reasoning_tokens if may_reason or in_reasoning else None
        is_text = choice.mode == "none" and budget is None
        forbids = chat.forbids_calls and is_text and form is None and self._can_forbid
        if is_text and not forbids and (form is None or not (in_reasoning or may_reason)):
            return form
        grammar = partial(
            response_grammar,
            self._format,
            choice=choice,
            form=form,
            parallel=chat.parallel,
            in_reasoning=in_reasoning,
            may_reason=may_reason,
            max_reasoning_tokens=budget,
            special_tokens=self.markers,
            has_free_calls=has_free_calls and bool(chosen),
        )
        if choice.mode != "none":
            given = "tools"
        elif form is not None:
            given = form.field
        else:
            given = "tool_choice" if forbids else "max_reasoning_tokens"
        made = StructuredOutput("grammar", grammar(chat.tools), given)
        if is_harmless(made) or all(tool.strict for tool in chosen):
            return made
        # A large grammar may turn out to take too long, when it is compiled.
        loose = [tool if tool.strict else replace(tool, parameters=_OBJECT) for tool in chat.tools]
        return made._replace(looser=grammar(loose))

    def response(
        self, chat: Chat, prompt: tuple[int, ...], seed: int, in_reasoning: bool
    ) -> ChatResponse:
        """Return the reader of the response to a prompt.

        seed: the seed of the sample. The ids of tool calls derive from the prompt and the seed, so
            they are unique in a conversation, and another process makes the same ids.
        """
        schemas = {}
        prefix = ""
        if chat.tools:
            # A call that is forbidden is read too, since its markup is no text.
            tools = chat.tools if chat.forbids_calls else chat.choice.tools(chat.tools)
            schemas = schemas_of(tools)
            known = array("q", prompt).tobytes() + (seed % 2**64).to_bytes(8, "little")
            prefix = f"call_{hashlib.sha256(known).hexdigest()[:12]}_"
        parser = ResponseParser(
            self._format,
            schemas=schemas,
            in_reasoning=in_reasoning,
            call_prefix=prefix,
            only_calls=chat.choice.mode == "required",
        )
        return ChatResponse(
            parser, self._kept_ids, is_parallel=chat.parallel, may_call=not chat.forbids_calls
        )
