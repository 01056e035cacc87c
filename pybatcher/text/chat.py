"""`ChatTemplate`: renders a conversation to the prompt format that the model was trained on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, ModelFormatError
from ..errors.checks import REQUEST, short, type_name
from .chat_messages import PartJoin, read_messages, unread_arguments
from .message_forms import MessageForms, joins_of, message_forms_of
from .plain_values import PlainReader
from .template_uses import THINKING_VARIABLES, TemplateUses

if TYPE_CHECKING:
    from .output.formats.default_tools import DefaultTools
    from .sandbox import Sandbox

__all__ = ["ChatTemplate"]

_VARIABLES = "a mapping of names to texts, numbers, lists and mappings"
_RESERVED = """
    add_generation_prompt additional_special_tokens bos_token caller cls_token dict eos_token kwargs
    loop mask_token messages namespace pad_token raise_exception range self sep_token strftime_now
    tools unk_token varargs
"""
_LOGGER = logging.getLogger("pybatcher")
_MOST_TOLD = 1000  # characters of an error of the template's code, which may quote a whole text


class ChatTemplate:
    """Renders messages with the checkpoint's own Jinja template. Any thread may use it.

    source: the template; None: the checkpoint has none, `available` is False, and every `render`
        raises InvalidRequestError.
    special_tokens: variables of the template: "bos_token", "eos_token", ...
    tool_source: the template of chats with tools; None: `source` is for these too.
    default_tools: writes tools, calls and results into the texts of messages if the template
        ignores tools; None: the template gets them as they are.

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
        default_tools: DefaultTools | None = None,
    ) -> None:
        self.source = source
        self.available = source is not None
        self.text = "\n".join(one for one in (source, tool_source) if one is not None)
        """All sources, to be searched for texts that are characteristic of a model."""
        self.special_tokens = dict(special_tokens or {})
        self._compiling = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._compile_error: ModelFormatError | None = None
        self._forms: MessageForms | None = None  # found when a chat needs them
        self._joins: dict[str, PartJoin] | None = None  # found when a message has several parts
        self._default_tools = default_tools
        self._uses: TemplateUses | None = None
        self._warned: set[str] = set()
        self._for_tools: ChatTemplate | None = None
        if tool_source is not None:
            self._for_tools = ChatTemplate(
                tool_source, special_tokens=special_tokens, default_tools=default_tools
            )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        stand_ins: Mapping[str, str] | None = None,
        goes_on: Callable[[], bool] | None = None,
    ) -> str:
        """Return the prompt's text, special tokens included: encode it without adding any.

        messages: [{"role": str, "content": str | [{"type": "text", "text": str}]}, ...], further
            fields as the template knows them. An assistant's content may be None or empty; of the
            two forms the template gets the one that it takes, and that shows the calls. Arguments
            of an assistant's `tool_calls` may be JSON texts, as in OpenAI's API: they become
            mappings, which most templates expect; for a template that expects texts, mappings
            become JSON texts. A text that is no JSON object is passed unchanged. Reasoning may be
            in `reasoning_content`, `reasoning` or `thinking`. Text parts are joined as the template
            joins them, or by a line feed if it takes only texts. A message with a part
            {"type": "image"} keeps its parts; if the template ignores contents that are texts, so
            does every message.
        add_generation_prompt: end with the header of the assistant's turn.
        tools: functions that the model may call: [{"type": "function", "function": {...}}, ...].
            If the template ignores them, `default_tools` describes them in the system message.
        variables: further variables of the template, such as enable_thinking or reasoning_effort.
        stand_ins: texts that replace others in messages and tools, but not in the template's own
            texts, so that the two can be told apart in the result.
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
                stand_ins=stand_ins,
                goes_on=goes_on,
            )
        if self.source is None:
            raise InvalidRequestError(
                "the model has no chat template, so that it takes a prompt, not messages"
            )
        sandbox = self._compiled(self.source)
        plain = self._read_messages(messages, sandbox)
        given = self._variables(variables)
        for name in THINKING_VARIABLES.keys() & given.keys():
            if not self._uses_of(sandbox).takes(name):
                self._warn(
                    name, f"{name} has no effect: the model's chat template does not read it"
                )
        if described and self._default_tools is not None and not self._uses_of(sandbox).tools:
            self._warn(
                "tools",
                "the model's chat template ignores tools: the system message describes them "
                "instead, and the model may not have been trained to call any",
            )
            plain = self._default_tools.with_tools(
                plain, described, in_system=self._uses_of(sandbox).system
            )
            described = None
        if not self._uses_of(sandbox).text_contents:
            plain = list(map(_in_parts, plain))
        if stand_ins:
            plain, described = _replaced(plain, stand_ins), _replaced(described, stand_ins)
        values = {
            **given,
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
            "tools": described,
        }
        from jinja2.exceptions import UndefinedError

        from .sandbox import RenderingAbandonedError, TemplateRefusedError

        try:
            return self._rendered(sandbox, values, goes_on)
        except RenderingAbandonedError:
            raise
        except TemplateRefusedError as error:
            raise InvalidRequestError(
                f"messages: the chat template says: {error}", field="messages"
            ) from error
        except Exception as error:  # of any type, as the template's own code raised it
            takes_mappings = self._forms is not None and self._forms.arguments == "mapping"
            where = unread_arguments(plain) if takes_mappings else ""
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

    def check(self) -> None:
        """Compile the template. Raises ModelFormatError for one that is broken."""
        if self.source is not None:
            self._compiled(self.source)

    def takes_tools(self) -> bool:
        """Return whether the template shows tools. True for a template that is broken.

        The template is asked once, in milliseconds, as it is by the next two methods.
        """
        if self._for_tools is not None:
            return self._for_tools.takes_tools()
        try:
            return self.source is not None and self._uses_of(self._compiled(self.source)).tools
        except ModelFormatError:
            return True

    def takes_images(self, placeholder: str) -> bool:
        """Return whether the template writes `placeholder` for an image.

        False for a template that is broken.
        """
        try:
            return self.source is not None and self._uses_of(self._compiled(self.source)).images(
                placeholder
            )
        except ModelFormatError:
            return False

    def thinking_variables(self) -> tuple[str, ...]:
        """Return the variables that switch reasoning: enable_thinking, reasoning_effort."""
        if self.source is None:
            return ()
        try:
            uses = self._uses_of(self._compiled(self.source))
        except ModelFormatError:
            return ()
        return tuple(filter(uses.takes, THINKING_VARIABLES))

    def takes_several_calls(self) -> bool:
        """Return whether the template takes a message with several calls of tools.

        True for a template that is broken.
        """
        if self._for_tools is not None:
            return self._for_tools.takes_several_calls()
        if self.source is None:
            return True
        try:
            return self._forms_of(self._compiled(self.source)).several_calls
        except ModelFormatError:
            return True

    def _rendered(
        self, sandbox: Sandbox, values: dict[str, Any], goes_on: Callable[[], bool] | None
    ) -> str:
        """Render, with empty texts in place of None if the template fails with None or writes it.

        The probe of the forms sees one place of the template; another may take the content's
        length.
        """
        from .sandbox import RenderingAbandonedError, TemplateLimitError

        messages = values["messages"]
        if all(message.get("content", "") is not None for message in messages):
            return sandbox.render(values, goes_on)
        texts = [
            {**message, "content": ""} if message.get("content", "") is None else message
            for message in messages
        ]
        others = {**values, "messages": texts}
        try:
            text = sandbox.render(values, goes_on)
        except (RenderingAbandonedError, TemplateLimitError):
            raise
        except Exception as error:  # of any type, as the template's own code raised it
            try:
                return sandbox.render(others, goes_on)
            except RenderingAbandonedError:
                raise
            except Exception:
                raise error from None
        if "None" not in text:
            return text
        try:
            other = sandbox.render(others, goes_on)
        except RenderingAbandonedError:
            raise
        except Exception:  # the template takes None alone
            return text
        return text if other.count("None") == text.count("None") else other

    def _read_messages(self, messages: object, sandbox: Sandbox) -> list[dict[str, Any]]:
        joins = self._joins_of(sandbox) if _has_parts(messages) else None
        plain = read_messages(messages, keeps_null=True, arguments="mapping", joins=joins)
        if self._default_tools is not None and any(map(_is_of_tools, plain)):
            uses = self._uses_of(sandbox)
            if not (uses.tools or uses.tool_turns):
                plain = self._default_tools.with_text_turns(plain)
        if not any(one["role"] == "assistant" and _needs_form(one) for one in plain):
            return plain
        forms = self._forms_of(sandbox)
        if forms.arguments != "mapping" and any("tool_calls" in one for one in plain):
            plain = read_messages(messages, keeps_null=True, arguments=forms.arguments, joins=joins)
        return forms.with_contents(plain)

    def _joins_of(self, sandbox: Sandbox) -> dict[str, PartJoin]:
        """Return how the template joins text parts, found once."""
        if self._joins is None:
            self._joins = joins_of(self._probe(sandbox))
        return self._joins

    def _probe(self, sandbox: Sandbox) -> Callable[[Mapping[str, Any]], str]:
        known = {**self._variables(None), "add_generation_prompt": True}
        return lambda values: sandbox.render({**known, **values})

    def _forms_of(self, sandbox: Sandbox) -> MessageForms:
        """Return the forms of the template. Threads that find them at a time find the same."""
        if self._forms is None:
            self._forms = message_forms_of(self._probe(sandbox))
        return self._forms

    def _uses_of(self, sandbox: Sandbox) -> TemplateUses:
        """Return what the template uses. Each part is found when it is asked for, and once."""
        if self._uses is None:
            assert self.source is not None
            self._uses = TemplateUses(self.source, self._probe(sandbox))
        return self._uses

    def _warn(self, what: str, text: str) -> None:
        """Log a warning, once for each `what`."""
        if what not in self._warned:
            self._warned.add(what)
            _LOGGER.warning("%s", text)

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


def _has_parts(messages: object) -> bool:
    """Return whether a message has several parts. Messages may be of any type."""
    if not isinstance(messages, (list, tuple)):
        return False
    contents = (one.get("content") for one in messages if isinstance(one, dict))
    return any(isinstance(one, (list, tuple)) and len(one) > 1 for one in contents)


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return message
    return {**message, "content": [{"type": "text", "text": content or ""}]}


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """Return plain data in which texts are replaced, also inside others."""
    if isinstance(value, str):
        for text, other in texts.items():
            value = value.replace(text, other)
        return value
    if isinstance(value, list):
        return [_replaced(one, texts) for one in value]
    if isinstance(value, dict):
        return {key: _replaced(one, texts) for key, one in value.items()}
    return value


def _is_of_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or "tool_calls" in message


def _needs_form(message: Mapping[str, Any]) -> bool:
    return "tool_calls" in message or message.get("content", "") is None
