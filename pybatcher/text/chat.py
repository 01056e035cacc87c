"""`ChatTemplate`: renders a conversation to the prompt format that the model was trained on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, ModelFormatError
from ..errors.checks import REQUEST, short, type_name
from .chat_messages import ArgumentForm, read_messages, unread_arguments
from .plain_values import PlainReader

if TYPE_CHECKING:
    from .sandbox import Sandbox

__all__ = ["ChatTemplate", "argument_form_of"]

_ASKS_FOR_NULL = re.compile(r"content['\"]?\]?\s*(is\s+(not\s+)?|[=!]=\s*)none", re.IGNORECASE)
"""Matches a template that handles a content of None itself. Another would write "None"."""

_VARIABLES = "a mapping of names to texts, numbers, lists and mappings"
_RESERVED = """
    add_generation_prompt additional_special_tokens bos_token caller cls_token dict eos_token kwargs
    loop mask_token messages namespace pad_token raise_exception range self sep_token strftime_now
    tools unk_token varargs
"""
_MOST_TOLD = 1000  # characters of an error of the template's code, which may quote a whole text
_KEY = "pybatcher_probe"
_ARGUMENTS = {_KEY: "value"}
_ID = "probe0000"  # nine letters and digits, which Mistral's templates require


class ChatTemplate:
    """Renders messages with the checkpoint's own Jinja template. Any thread may use it.

    source: the template; None: the checkpoint has none, `available` is False, and every `render`
        raises InvalidRequestError.
    special_tokens: variables of the template: "bos_token", "eos_token", ...
    tool_source: the template of chats with tools; None: `source` is for these too.

    The template comes with the checkpoint and is not trusted: it runs in a `Sandbox`. A broken
        template affects chats only: `render` raises the error. The first `render` imports Jinja and
        compiles the template, so that a model is opened faster.
    """

    def __init__(
        self,
        source: str | None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        tool_source: str | None = None,
    ) -> None:
        self.source = source
        self.available = source is not None
        self.text = "\n".join(one for one in (source, tool_source) if one is not None)
        """All sources, to be searched for texts that are characteristic of a model."""
        self.special_tokens = dict(special_tokens or {})
        self._compiling = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._asks_for_null = source is not None and bool(_ASKS_FOR_NULL.search(source))
        self._compile_error: ModelFormatError | None = None
        self._argument_form: ArgumentForm | None = None  # found when a chat has a call
        self._for_tools: ChatTemplate | None = None
        if tool_source is not None:
            self._for_tools = ChatTemplate(tool_source, special_tokens=special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        goes_on: Callable[[], bool] | None = None,
    ) -> str:
        """Return the prompt's text, special tokens included: encode it without adding any.

        messages: [{"role": str, "content": str | [{"type": "text", "text": str}]}, ...], further
            fields as the template knows them. An assistant's content may be None, which is rendered
            as no text, or as the template handles it. Arguments of an assistant's `tool_calls` may
            be JSON texts, as in OpenAI's API: they become mappings, which most templates expect;
            for a template that expects texts, mappings become JSON texts. A text that is no JSON
            object is passed unchanged. Reasoning may be in `reasoning_content`, `reasoning` or
            `thinking`.
        add_generation_prompt: end with the header of the assistant's turn.
        tools: functions that the model may call: [{"type": "function", "function": {...}}, ...].
        variables: further variables of the template, such as enable_thinking or reasoning_effort.
        goes_on: called every few milliseconds; False ends the rendering with a
            RenderingAbandonedError.

        Raises InvalidRequestError for messages, tools and variables of another shape or that the
        template refuses, ModelFormatError for a template that is broken, exceeds the sandbox's
        limits, or does not come to an end.
        """
        described = _read_tools(tools)
        if described is not None and self._for_tools is not None:
            return self._for_tools.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                tools=described,
                variables=variables,
                goes_on=goes_on,
            )
        if self.source is None:
            raise InvalidRequestError(
                "the model has no chat template, so that it takes a prompt, not messages"
            )
        sandbox = self._compiled(self.source)
        plain = self._read_messages(messages, sandbox)
        values = {
            **self._variables(variables),
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
            "tools": described,
        }
        from jinja2.exceptions import UndefinedError

        from .sandbox import RenderingAbandonedError, TemplateRefusedError

        try:
            return sandbox.render(values, goes_on)
        except RenderingAbandonedError:
            raise
        except TemplateRefusedError as error:
            raise InvalidRequestError(
                f"messages: the chat template says: {error}", field="messages"
            ) from error
        except Exception as error:  # of any type, as the template's own code raised it
            where = unread_arguments(plain) if self._argument_form == "mapping" else ""
            if where:
                raise InvalidRequestError(
                    f"{where} is no JSON object, and the chat template can do nothing with it "
                    f"({type_name(error)}); it must be the JSON text of an object",
                    field=where,
                ) from error
            if isinstance(error, UndefinedError):
                raise InvalidRequestError(
                    f"messages: the chat template needs more: {error}", field="messages"
                ) from error
            raise _template_error(error) from error

    def _read_messages(self, messages: object, sandbox: Sandbox) -> list[dict[str, Any]]:
        form = self._argument_form or "mapping"
        plain = read_messages(messages, keeps_null=self._asks_for_null, arguments=form)
        if self._argument_form is None and any("tool_calls" in message for message in plain):
            form = argument_form_of(
                lambda values: sandbox.render({**self._variables(None), **values})
            )
            self._argument_form = form  # threads that find it at the same time find the same
            if form != "mapping":
                plain = read_messages(messages, keeps_null=self._asks_for_null, arguments=form)
        return plain

    def _variables(self, variables: object) -> dict[str, Any]:
        """Return all variables except those that `render` has arguments for."""
        known = {"documents": None, **self.special_tokens}
        if variables is None:
            return known
        with REQUEST.reading("chat_template_kwargs", variables, _VARIABLES):
            if not isinstance(variables, Mapping):
                raise REQUEST.bad("chat_template_kwargs", variables, _VARIABLES)
            plain = PlainReader("they are too large").mapping(variables, "chat_template_kwargs", 0)
        for name in plain:
            if not name.isidentifier() or name in self.special_tokens or name in _RESERVED.split():
                raise InvalidRequestError(
                    f"chat_template_kwargs has {short(name)}; names must be those of Jinja "
                    "variables, other than messages, tools, special tokens and the template's "
                    "functions",
                    field="chat_template_kwargs",
                )
        return {**known, **plain}

    def _compiled(self, source: str) -> Sandbox:
        from .sandbox import Sandbox

        with self._compiling:
            if self._sandbox is None and self._compile_error is None:
                try:
                    self._sandbox = Sandbox(source)
                except Exception as error:  # the parser and Python's compiler raise many types
                    self._compile_error = _template_error(error)
        if self._sandbox is None:
            assert self._compile_error is not None
            raise copy(self._compile_error)  # each caller gets an exception of its own
        return self._sandbox


def _template_error(error: Exception) -> ModelFormatError:
    from jinja2.exceptions import SecurityError, TemplateError

    from .sandbox import TemplateLimitError

    if isinstance(error, (TemplateLimitError, SecurityError)):
        return ModelFormatError(f"chat_template: stopped: {error}", field="chat_template")
    if isinstance(error, RecursionError):
        return ModelFormatError(
            "chat_template: stopped: it is nested too deeply", field="chat_template"
        )
    if isinstance(error, MemoryError):
        return ModelFormatError(
            "chat_template: stopped: the machine has no memory left for it", field="chat_template"
        )
    told = str(error)[:_MOST_TOLD]
    if isinstance(error, TemplateError):
        return ModelFormatError(
            f"chat_template: not a valid template: {told}", field="chat_template"
        )
    return ModelFormatError(
        f"chat_template: failed: {type(error).__name__}: {told}", field="chat_template"
    )


def _read_tools(tools: object) -> list[Any] | None:
    """Return descriptions of tools as plain data; None without tools."""
    if tools is None:
        return None
    wanted = "a list of mappings that describe tools"
    with REQUEST.reading("tools", tools, wanted):
        if not isinstance(tools, (list, tuple)):
            raise REQUEST.bad("tools", tools, wanted)
        reader = PlainReader("tools are too large", most=2**22)
        for index, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise REQUEST.bad(f"tools[{index}]", tool, "a mapping that describes a tool")
        return reader.value(tools, "tools", 0) or None


def argument_form_of(render: Callable[[Mapping[str, Any]], str]) -> ArgumentForm:
    """Return the form, found by rendering a chat with a call in each of the two.

    Most templates expect mappings. The templates of DeepSeek-V3 and R1 join the arguments to other
    texts: a mapping would be an error, or be written in Python's notation.

    render: takes the variables of the template; it may raise anything.
    """
    text = json.dumps(_ARGUMENTS)
    as_mapping = _rendered(render, _ARGUMENTS)
    if _KEY in as_mapping and f"'{_KEY}'" not in as_mapping:
        return "mapping"
    return "text" if text in _rendered(render, text) else "mapping"


def _rendered(render: Callable[[Mapping[str, Any]], str], arguments: object) -> str:
    """Return the chat's text; "" if there is an error."""
    messages: Sequence[Mapping[str, Any]] = [
        {"role": "user", "content": "question"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": _ID,
                    "type": "function",
                    "function": {"name": "probe", "arguments": arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": _ID, "name": "probe", "content": "answer"},
    ]
    try:
        return render({"messages": messages})
    except Exception:  # of any type, as the template's own code raised it
        return ""
