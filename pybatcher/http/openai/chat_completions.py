"""Reads requests and writes responses of OpenAI's chat completions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calls.chat_settings import CHAT_OPTIONS
from ...calls.completion import Completion, FinishReason, Piece, TokenLogprob, Usage
from ...calls.options import TemplateOptions
from ...params import chat_sampling
from ...text.output.tools.tools import MAX_TOOLS
from ...text.tool_call import ToolCall
from ..base.image_sources import image_part, read_image_url
from ..base.sampling_fields import (
    ANY_LENGTH,
    bad,
    read_flag,
    read_sampling,
    read_streaming,
    read_text,
    refuse_token_ids,
    renamed_fields,
    unsupported,
)
from ..base.token_texts import TokenTexts
from ..base.turns import check_count

__all__ = [
    "ChatAsked",
    "RunningUsage",
    "by_sample",
    "choices_of",
    "chunks_of",
    "content_of",
    "finish_reason_of",
    "joined_logprobs",
    "read_chat",
    "read_image_part",
    "read_messages",
    "template_options",
    "tool_call_body",
    "usage_body",
    "usage_chunk",
]

_OF_TEMPLATES = tuple(TemplateOptions.__annotations__)
_CHAT_NAMES = {name: name for name in CHAT_OPTIONS}
_CHAT_NAMES["thinking_token_budget"] = "max_reasoning_tokens"
_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "deadline": "length",
}


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """A request for a chat completion: the arguments of `chat`, and the form of the answer.

    names: the request's fields by argument, if their names differ. tokens_as_ids: tokens are
        written as `token_id:N` in log-probabilities, as in vLLM.
    """

    messages: list[dict[str, Any]]
    options: dict[str, Any]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    names: dict[str, str]
    tokens_as_ids: bool = False

    @property
    def template_options(self) -> Any:
        """The options of the chat template, as `tokenize` takes them."""
        return template_options(self.options)


def template_options(options: Mapping[str, Any]) -> Any:
    """Return the options of the chat template among those of a chat, as `tokenize` takes them."""
    return {name: options[name] for name in _OF_TEMPLATES if name in options}


def read_chat(body: Mapping[str, Any]) -> ChatAsked:
    """Read the body of a request. Ignores unknown keys. Raises HttpError."""
    _refuse_others(body)
    options = chat_sampling(read_sampling(body))
    names = {**renamed_fields(body), "logprobs": "top_logprobs", "prompt": "messages"}
    most = body.get("max_tokens")
    if body.get("max_completion_tokens") is not None:
        most, names["max_tokens"] = body["max_completion_tokens"], "max_completion_tokens"
    options["max_tokens"] = ANY_LENGTH if most is None else most
    top = body.get("top_logprobs")
    if read_flag(body, "logprobs", False):
        options["logprobs"] = 0 if top is None else top
    elif top is not None and (top or type(top) is not int):
        raise bad("top_logprobs", top, "left out where logprobs is not true")
    for name, option in _CHAT_NAMES.items():
        if body.get(name) is not None:
            options[option] = body[name]
            names |= {} if name == option else {option: name}
    if options.get("tools") in (None, []):
        options.pop("tools", None)
        if options.get("tool_choice") in ("auto", "none"):
            del options["tool_choice"]
    names |= _names_of_tools(body.get("tools"))
    streaming = read_streaming(body)
    as_ids = read_flag(body, "return_tokens_as_token_ids", False)
    return ChatAsked(read_messages(body.get("messages")), options, *streaming, names, as_ids)


def _names_of_tools(tools: object) -> dict[str, str]:
    """Return the names of the tools in this API, where the fields of a function are one deeper."""
    names: dict[str, str] = {}
    for i, tool in enumerate(tools[:MAX_TOOLS] if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            where = f"tools[{i}]"
            names |= {f"{where}.{own}": f"{where}.{own}" for own in ("type", "function")}
            names[where] = f"{where}.function"
    return names


def _refuse_others(body: Mapping[str, Any]) -> None:
    """Raise HttpError for fields that would change the answer and have no effect here."""
    if body.get("functions"):
        raise unsupported("functions", "send tools")
    refuse_token_ids(body)
    if body.get("function_call") not in (None, "none", "auto"):
        raise unsupported("function_call", "send tools and tool_choice")
    if read_flag(body, "continue_final_message", False):
        advice = "a chat begins a new turn of the assistant; continue the text by /v1/completions"
        raise unsupported("continue_final_message", advice)
    if not read_flag(body, "add_generation_prompt", True):
        advice = "a chat ends where the assistant's turn begins; leave it out"
        raise unsupported("add_generation_prompt", advice)


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages in the form of `chat`: developers are the system, parts are texts and images.

    The images are `ImageSource`s, for `load_images`.
    """
    if not isinstance(messages, list) or not messages:
        raise bad("messages", messages, "a list of at least one message")
    check_count(messages, "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad(where, message, "a map with role and content")
    read = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "function_call" in read:
        raise unsupported(f"{where}.function_call", "send tool_calls")
    if read.get("role") == "developer":
        read["role"] = "system"
    if read.get("role") != "assistant" and read.get("content") is None:
        read["content"] = ""
    content = read.get("content")
    if isinstance(content, list):
        takes_images = read.get("role") in ("user", "tool")
        parts = [
            _part(part, f"{where}.content[{i}]", takes_images) for i, part in enumerate(content)
        ]
        read["content"] = content_of(parts)
    return read


def content_of(parts: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a content of one text, or of parts, which the chat template joins.

    parts: texts, and parts with images.
    """
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]


def _part(part: object, where: str, takes_images: bool) -> str | dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    is_image = kind in ("image_url", "input_image")
    if (
        not isinstance(part, dict)
        or not (is_image or kind in ("text", "refusal", "input_text", "output_text"))
        or (is_image and not takes_images)
    ):
        wanted = "'text' or 'image_url'" if takes_images else "'text', in a message of this role"
        raise bad(f"{where}.type", kind, f"{wanted}: this server reads no other")
    if is_image:
        return read_image_part(part, where)
    field = "refusal" if kind == "refusal" else "text"
    return read_text(part.get(field), f"{where}.{field}")


def read_image_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a part with an image of chats (`image_url`) or responses (`input_image`).

    where: the name of the part in errors. Raises HttpError.
    """
    if part.get("file_id") is not None:
        advice = "this server keeps no files; send the image as a data URI in image_url"
        raise unsupported(f"{where}.file_id", advice)
    url, detail, where = part.get("image_url"), part.get("detail"), f"{where}.image_url"
    at = f"{where.removesuffix('image_url')}detail"
    if isinstance(url, dict):
        detail, at = url.get("detail", detail), f"{where}.detail"
        url, where = url.get("url"), f"{where}.url"
    return image_part(read_image_url(url, where), detail, at)


def choices_of(made: Completion, texts: TokenTexts) -> Iterator[dict[str, Any]]:
    """Yield the choices of a response."""
    for i, choice in enumerate(made.choices):
        yield {
            "index": i,
            "message": _answer(choice),
            "logprobs": _logprobs(choice.logprobs, texts),
            "finish_reason": finish_reason_of(choice.finish_reason),
        }


def _answer(made: Completion) -> dict[str, Any]:
    has_calls = bool(made.tool_calls)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if has_calls and not made.text else made.text,
        "refusal": None,
    }
    if made.reasoning:
        message["reasoning_content"] = made.reasoning
    if has_calls:
        message["tool_calls"] = [tool_call_body(call) for call in made.tool_calls]
    return message


def tool_call_body(call: ToolCall) -> dict[str, Any]:
    """Return a call in the form of OpenAI's API, where the arguments are a JSON text.

    It is the text of a stream's deltas, and the beginning of one if the call was cut.
    """
    text = call.json_arguments
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
        text = json.dumps(call.arguments)
    function = {"name": call.name, "arguments": text}
    return {"id": call.id, "type": "function", "function": function}


def chunks_of(
    pieces: Iterable[Piece], texts: TokenTexts, begun: set[int], head: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the chunks for the pieces of one step: one for each sample.

    begun: the samples that have had a chunk; new ones are added. The first chunk of a sample has
        the role. head: the fields that all chunks of a stream have.
    """
    chunks = []
    for index, own in by_sample(pieces).items():
        delta: dict[str, Any] = {}
        if index not in begun:
            begun.add(index)
            delta["role"] = "assistant"
        if text := "".join(piece.text for piece in own):
            delta["content"] = text
        elif "role" in delta:
            delta["content"] = ""
        if reasoning := "".join(piece.reasoning for piece in own):
            delta["reasoning_content"] = reasoning
        if calls := _call_deltas(own):
            delta["tool_calls"] = calls
        reason = own[-1].finish_reason
        drawn = joined_logprobs(own)
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(drawn or None, texts),
            "finish_reason": None if reason is None else finish_reason_of(reason),
        }
        if delta or drawn or reason is not None:
            chunks.append({**head, "choices": [choice]})
    return chunks


def _call_deltas(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for piece in pieces:
        for delta in piece.tool_calls:
            if delta.name:
                function = {"name": delta.name, "arguments": delta.arguments}
                made = {"index": delta.index, "id": delta.id, "type": "function"}
                deltas.append({**made, "function": function})
            elif delta.arguments:
                if deltas and deltas[-1]["index"] == delta.index:
                    deltas[-1]["function"]["arguments"] += delta.arguments
                else:
                    function = {"arguments": delta.arguments}
                    deltas.append({"index": delta.index, "function": function})
    return deltas


def usage_chunk(usage: Usage, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chunk with the usage, which comes after the last one."""
    return {**head, "choices": [], "usage": usage_body(usage)}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return the token counts of a request; those of images only if it has any."""
    details = {"cached_tokens": usage.cached_tokens}
    if usage.image_tokens:
        details["image_tokens"] = usage.image_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
    }


def finish_reason_of(reason: FinishReason) -> str:
    """Return OpenAI's name of a finish reason."""
    return _REASONS[reason]


def by_sample(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    """Return the pieces of a step by the index of their sample."""
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.index, []).append(piece)
    return found


def joined_logprobs(
    pieces: Sequence[Piece], *, with_end: bool = False
) -> tuple[TokenLogprob, ...] | None:
    """Return the log-probabilities of pieces of one sample. None: they were not requested.

    with_end: True keeps that of an end token, which is no part of the text.
    """
    if pieces[0].logprobs is None:
        return None
    told = (one for piece in pieces for one in piece.logprobs or ())
    return tuple(one for one in told if with_end or not one.is_end)


def _logprobs(logprobs: Sequence[TokenLogprob] | None, texts: TokenTexts) -> dict[str, Any] | None:
    """Return the log-probabilities of an output without that of its end token, as OpenAI's API."""
    if logprobs is None:
        return None
    told = [texts.described(one) for one in logprobs if not one.is_end]
    return {"content": told, "refusal": None}


class RunningUsage:
    """Adds `usage` to the chunks of a stream that come before the last one.

    n_prompt: the tokens of all prompts, for `stream_options.continuous_usage_stats`; None: the
        usage of these chunks is null. The usage is that of all samples together. Only the last
        chunk has the number of cached tokens.
    is_asked: False leaves chunks without usage.
    """

    def __init__(self, n_prompt: int | None, *, is_asked: bool) -> None:
        self._is_asked = is_asked
        self._n_prompt = n_prompt
        self._n_drawn = 0

    def told(
        self, chunks: Iterable[dict[str, Any]], pieces: Iterable[Piece]
    ) -> Iterator[dict[str, Any]]:
        """Return the chunks of these pieces, with the usage so far."""
        if not self._is_asked:
            yield from chunks
            return
        if self._n_prompt is None:
            yield from ({**chunk, "usage": None} for chunk in chunks)
            return
        self._n_drawn += sum(len(piece.token_ids) for piece in pieces)
        usage = {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_drawn,
            "total_tokens": self._n_prompt + self._n_drawn,
        }
        for chunk in chunks:
            yield {**chunk, "usage": usage}
