"""Reader of the harmony format of gpt-oss: messages in channels.

A response is `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final
<|message|>...<|return|>`, and a call of a tool `<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{...}<|call|>`; the recipient may also stand before the channel. Source
of the format: OpenAI, "OpenAI harmony response format", 2025.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from ..formats.formats import HARMONY_MARKERS
from .call_builder import CallBuilder
from .call_readers import read_json_arguments
from .delta_writer import DeltaWriter
from .markers import Markers
from .source import MalformedCallError, Reading, TextSource

__all__ = ["read_harmony"]

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER_BEGINS = ("<|start|>", "<|channel|>", "to=")
_BODY_END = Markers(one for one in HARMONY_MARKERS if one not in (_MESSAGE, "<|constrain|>"))
_HEADER_END = Markers(HARMONY_MARKERS)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
# limits of a header: parts between markers, and characters of one part
_MAX_PIECES, _MAX_PIECE = 8, 128


def read_harmony(
    source: TextSource,
    writer: DeltaWriter,
    new_call: Callable[[], CallBuilder] | None,
    *,
    in_reasoning: bool,
) -> Reading[None]:
    """Read a response to its end.

    new_call: makes the builder of a call; None: calls are content.
    in_reasoning: the response continues a message of the channel "analysis".
    """
    if in_reasoning:
        yield from _read_body(source, writer, writer.reasoning)
    while (yield from source.peek()):
        parts: list[str] = []
        is_whole = yield from _read_header(source, parts.append)
        header = "".join(parts)
        if not is_whole and source.ends_cut:
            header += source.take_partial(2)
            if header.strip():
                _end_cut_header(writer, new_call, header)
                return
        if not is_whole:
            writer.content(header)
            yield from _read_body(source, writer, writer.content)
            continue
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and new_call is not None:
            yield from _read_call(source, writer, new_call(), header, recipient.group(1))
            continue
        writer.markup(header)
        reasoning = channel is not None and channel.group(1) == "analysis"
        yield from _read_body(source, writer, writer.reasoning if reasoning else writer.content)


def _read_header(source: TextSource, on_text: Callable[[str], None]) -> Reading[bool]:
    """Read the header of a message to its end; False if it is invalid or too long."""
    if (yield from source.peek()).isspace():
        on_text(source.take(1))
    marker = yield from source.literal(*_HEADER_BEGINS)
    on_text(marker)
    pieces = 0
    while marker and pieces < _MAX_PIECES:
        marker = yield from source.until(_HEADER_END, on_text, most=_MAX_PIECE)
        if marker in _ENDS:
            return False
        if marker:
            on_text(source.take(len(marker)))
        if marker == _MESSAGE:
            return True
        pieces += 1
    return False


def _read_body(
    source: TextSource, writer: DeltaWriter, on_text: Callable[[str], None]
) -> Reading[None]:
    """Read the text of a message, and the marker that ends it."""
    marker = yield from source.until(_BODY_END, on_text)
    writer.markup(source.take(len(marker)) if marker in _ENDS else source.take_partial())


def _end_cut_header(
    writer: DeltaWriter, new_call: Callable[[], CallBuilder] | None, header: str
) -> None:
    """End a response that was cut in a header, which may have the name of a call."""
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient.end() < len(header) and new_call is not None:
        call = new_call()
        with suppress(MalformedCallError):  # a recipient that is no name
            call.set_name(recipient.group(1).removeprefix("functions."))
        if call.cut(header):
            return
    writer.markup(header)


def _read_call(
    source: TextSource, writer: DeltaWriter, call: CallBuilder, header: str, recipient: str
) -> Reading[None]:
    source.record()
    try:
        call.set_name(recipient.removeprefix("functions."))
        yield from source.blanks()
        if (yield from source.peek()) == "{":
            yield from read_json_arguments(source, call)
        elif not (yield from source.literal(*_ENDS)):
            raise MalformedCallError("its arguments are not a JSON object")
        call.end(lambda: header + source.recorded())
    except MalformedCallError as error:
        if source.ends_cut:
            source.take_partial()
            text = header + source.recorded()
            if not call.cut(text):
                writer.markup(text)
            return
        writer.reject(call.index, header + source.recorded(), str(error))
        yield from _read_body(source, writer, writer.content)
        return
    writer.markup((yield from source.blanks()) + (yield from source.literal(*_ENDS)))
    writer.markup(source.take_partial())
