"""`ResponseParser`: splits the text of a response, as it comes, into its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..formats.formats import CallSyntax, ResponseFormat, ThinkMarkers
from .call_builder import CallBuilder, call_id
from .call_readers import (
    XML_OPEN,
    read_arg_keys_call,
    read_deepseek_call,
    read_gemma_call,
    read_json_call,
    read_mistral_call,
    read_python_call,
    read_xml_call,
)
from .delta_writer import DeltaWriter
from .deltas import Delta, ParsedResponse
from .harmony import read_harmony
from .json_reader import expect
from .markers import Markers
from .source import MalformedCallError, Reading, TextSource

__all__ = ["ResponseParser", "TrimmedText", "parse_response"]

_BLANKS = " \t\r\n"
_JSON_NAME = re.compile(
    r'\{\s*(?:"(?P<open_key>\w+)|'
    r'(?:"type"\s*:\s*"function"\s*,\s*)?"(?P<key>\w+)"\s*(?::\s*(?:"(?P<name>[^"\\]*)?)?)?)'
)
"""Matches an object that is cut before the end of its name, with or without "type"."""


class ResponseParser:
    """Parses a response by a format, in pieces of any length; no text is an error.

    format: the format of the model's family.
    schemas: schemas of the arguments of the request's tools, by the tools' names. Empty: no text is
        a call. None: the tools are not known, and every name counts.
    in_reasoning: the prompt ended inside reasoning (`ResponseFormat.opens_reasoning`).
    call_prefix: the text from which the calls' ids are made, with the index of the call.
    only_calls: True if the response must call a tool, so that no text is an answer.

    Every character is in exactly one delta: as content, reasoning or markup, as the `raw` of a call
        or the text of a rejected one. The deltas of a response, with neighbours of a kind joined,
        do not depend on the pieces. Text is held back while it can still become a marker, or a call
        whose name is not known yet. The time is linear in the length of the text.

    The text must contain the format's `markers`: some are special tokens of the tokenizer, and a
        detokenizer may skip those.
    """

    def __init__(
        self,
        format: ResponseFormat,
        *,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
        call_prefix: str = "call_",
        only_calls: bool = False,
    ) -> None:
        self._format = format
        self._only_calls = only_calls
        self._schemas = schemas
        self._source = TextSource()
        self._writer = DeltaWriter(partial(call_id, format.call_ids, call_prefix))
        self._syntaxes: dict[str, CallSyntax] = {}
        self._bare: CallSyntax | None = None
        if schemas is None or schemas:
            self._syntaxes = {text: one for one in format.calls for text in one.opens}
            self._bare = next((one for one in format.calls if not one.opens), None)
        self._anywhere = {one.open: one for one in format.think if one.anywhere}
        self._markers = Markers([*self._syntaxes, *self._anywhere, *format.dropped])
        self._content = TrimmedText(self._write_content)
        self._add_content = self._content.add if self._syntaxes else self._writer.content
        # characters of the beginning of a marker that is markup at the end of a text that was cut
        self._shortest = 1 if self._syntaxes else 2
        self._after_call = False  # the text that waits in `_content` follows a call
        self._reading: Reading[None] | None = self._read(in_reasoning)

    def feed(self, text: str) -> list[Delta]:
        """Add text; return the parts that are certain now."""
        self._source.feed(text)
        self._go_on()
        return self._writer.drain()

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """End the text; return the rest. Text that is fed afterwards is ignored.

        is_cut: the model did not end the text itself. A call that is not complete is then a call
            with `is_cut`, or markup if its name is not complete either, and the beginning of a
            marker is markup (without tools, from two characters on). Otherwise both are content.
        """
        self._source.is_cut = is_cut and not self._source.ended
        self._source.ended = True
        self._go_on()
        return self._writer.drain()

    def response(self) -> ParsedResponse:
        """Return the response so far; all of it after `finish`."""
        return self._writer.response()

    def _go_on(self) -> None:
        if self._reading is None:
            return
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None

    def _read(self, in_reasoning: bool) -> Reading[None]:
        if self._format.harmony:
            calls = self._schemas is None or self._schemas
            new_call = partial(self._new_call, exact=False) if calls else None
            yield from read_harmony(self._source, self._writer, new_call, in_reasoning=in_reasoning)
            return
        yield from self._read_start(in_reasoning)
        while marker := (yield from self._next_marker()):
            if marker in self._syntaxes:
                yield from self._read_calls(self._syntaxes[marker], marker)
                continue
            self._release_blanks()
            self._writer.markup(self._source.take(len(marker)))
            if marker in self._anywhere:
                yield from self._read_reasoning([self._anywhere[marker]])
            else:
                self._writer.markup((yield from self._source.blanks()))
        self._release_blanks()
        self._writer.markup(self._source.take_partial())

    def _next_marker(self) -> Reading[str]:
        add, shortest = self._add_content, self._shortest
        return (yield from self._source.until(self._markers, add, shortest=shortest))

    def _write_content(self, text: str) -> None:
        self._writer.content(text)
        self._after_call = False

    def _release_blanks(self) -> None:
        """Pass on the waiting blanks if neither text nor a call follows."""
        blanks = self._content.take_blanks()
        if self._after_call:
            self._writer.markup(blanks)
        else:
            self._writer.content(blanks)

    def _read_start(self, in_reasoning: bool) -> Reading[None]:
        """Read the parts that only the start of a response can have: reasoning, and calls without
        marker.
        """
        source, writer, think = self._source, self._writer, self._format.think
        blanks = yield from source.blanks()
        if in_reasoning and think:
            writer.markup(blanks)
            yield from self._read_reasoning(think)
            blanks = ""
        elif think and (marker := (yield from source.literal(*_markers_of(think)))):
            writer.markup(blanks + marker)
            if opened := [one for one in think if one.open == marker]:
                yield from self._read_reasoning(opened)
            else:  # closed at once, as some models do whose prompts may open it
                writer.markup((yield from source.blanks()))
            blanks = ""
        elif partial := source.take_partial(self._shortest):
            writer.markup(blanks + partial)
            return
        first = yield from source.peek()
        if self._bare is None or first not in ("{", "["):
            self._add_content(blanks)
            return
        writer.markup(blanks)
        separator = ""
        while (yield from source.peek()) in ("{", "["):
            writer.markup(separator)
            if not (yield from self._read_calls(self._bare, "")):
                return
            writer.markup(self._content.take_blanks())
            separator = yield from source.literal(";", ",")
            separator += yield from source.blanks()
        if source.ends_cut:
            writer.markup(separator)
        else:
            self._add_content(separator)

    def _read_reasoning(
        self, think: list[ThinkMarkers] | tuple[ThinkMarkers, ...]
    ) -> Reading[None]:
        """Read reasoning, the marker that closes it, and the blanks after each."""
        source, writer = self._source, self._writer
        writer.markup((yield from source.blanks()))
        text = TrimmedText(writer.reasoning)
        closes = Markers(one.close for one in think)
        marker = yield from source.until(closes, text.add, shortest=self._shortest)
        if not marker:
            writer.reasoning(text.take_blanks())
            writer.markup(source.take_partial())
            return
        writer.markup(text.take_blanks() + source.take(len(marker)))
        writer.markup((yield from source.blanks()))

    def _read_calls(self, syntax: CallSyntax, opened: str) -> Reading[bool]:
        """Read calls in a row and the marker that closes them. Return False if there is none.

        The blanks before a call are markup, and content otherwise.
        """
        source, writer = self._source, self._writer
        before = self._content.take_blanks()
        source.record()
        found = False
        call = self._new_call(exact=syntax.exact)
        try:
            source.take(len(opened))
            listed = False
            if opened != XML_OPEN:
                yield from source.blanks()
                listed = bool((yield from source.literal("[")))
            while True:
                if listed:
                    yield from source.blanks()
                yield from self._read_call(call, syntax, opened)
                call.end(partial(self._raw, before))
                found, before = True, ""
                if not (yield from self._goes_on(syntax, listed=listed)):
                    break
                source.record()
                call = self._new_call(exact=syntax.exact)
        except MalformedCallError as error:
            if source.ends_cut:
                found = self._cut(call, syntax, before) or found
            else:
                self._reject(call, before, str(error))
        if found:
            blanks = self._content.take_blanks() + (yield from source.blanks())
            if syntax.closes:
                closed = yield from source.literal(*syntax.closes)
                closed = closed or source.take_partial()
                if closed:
                    writer.markup(blanks + closed)
                    blanks = yield from source.blanks()
            if writer.has_content:
                self._content.add(blanks)
                self._after_call = True
            else:
                writer.markup(blanks)
        return found

    def _goes_on(self, syntax: CallSyntax, *, listed: bool) -> Reading[bool]:
        """Read the text between two calls after one marker; return whether another call follows.

        Without a list, JSON objects may stand in a row if a marker closes them.
        """
        source, writer = self._source, self._writer
        blanks = yield from source.blanks()
        if listed:
            separator = yield from source.literal(",", "]")
            writer.markup(blanks + separator)
            return separator == ","
        if syntax.closes and "json" in syntax.forms and (yield from source.peek()) == "{":
            writer.markup(blanks)
            return True
        self._content.add(blanks)
        return False

    def _raw(self, before: str) -> str:
        self._writer.markup(before)
        return self._source.recorded()

    def _read_call(self, call: CallBuilder, syntax: CallSyntax, opened: str) -> Reading[None]:
        """Read one call in the form that its first character shows."""
        source, forms = self._source, syntax.forms
        first = yield from source.peek()
        if opened == XML_OPEN:
            yield from read_xml_call(source, call)
        elif first == "{" and ("json" in forms or "mistral" in forms):
            yield from read_json_call(source, call, syntax)
        elif first == "<" and "xml" in forms:
            yield from expect(source, XML_OPEN)
            yield from read_xml_call(source, call)
        elif "arg_keys" in forms:
            yield from read_arg_keys_call(source, call, syntax.closes)
        elif "mistral" in forms:
            yield from read_mistral_call(source, call)
        elif "deepseek" in forms or "deepseek_bare" in forms:
            yield from read_deepseek_call(source, call)
        elif "gemma" in forms:
            yield from read_gemma_call(source, call, syntax.quote)
        elif "python" in forms:
            yield from read_python_call(source, call)
        else:
            yield from expect(source, "{")

    def _reject(self, call: CallBuilder, before: str, note: str) -> None:
        text = before + self._source.recorded()
        if call.exact and call.index is None:
            self._writer.content(text)  # for example an answer in JSON, which is no fault
        elif text or call.index is not None:
            self._writer.reject(call.index, text, note)

    def _cut(self, call: CallBuilder, syntax: CallSyntax, before: str) -> bool:
        """End a call at the end of a text that was cut. Return False if its text is content."""
        self._source.take_partial()
        text = before + self._source.recorded()
        if call.cut(text):
            return True
        if call.exact and not self._begins_call(text, syntax):
            self._writer.content(text)
            return False
        self._writer.markup(text)
        return True

    def _begins_call(self, text: str, syntax: CallSyntax) -> bool:
        """Return whether a text without a marker begins as a call of a known tool does."""
        if self._only_calls or self._writer.has_calls:
            return True
        for marker in syntax.opens:
            text = text.removeprefix(marker)
        text = text.lstrip(_BLANKS).removeprefix("[").lstrip(_BLANKS)
        names = self._schemas or ()
        begun = _JSON_NAME.fullmatch(text)
        if begun is None:
            return "python" in syntax.forms and any(one.startswith(text) for one in names if text)
        key, name = begun.group("open_key"), begun.group("name") or ""
        if key is not None:
            return any(one.startswith(key) for one in syntax.name_keys)
        is_known = begun.group("key") in syntax.name_keys
        return is_known and (self._schemas is None or any(one.startswith(name) for one in names))

    def _new_call(self, *, exact: bool) -> CallBuilder:
        return CallBuilder(self._writer, self._schemas, exact=exact)


def _markers_of(think: tuple[ThinkMarkers, ...]) -> list[str]:
    return [marker for one in think for marker in (one.open, one.close)]


def parse_response(
    text: str,
    format: ResponseFormat,
    *,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
    in_reasoning: bool = False,
    call_prefix: str = "call_",
) -> ParsedResponse:
    """Parse a complete response. The arguments are those of `ResponseParser`."""
    parser = ResponseParser(
        format, schemas=schemas, in_reasoning=in_reasoning, call_prefix=call_prefix
    )
    parser.feed(text)
    parser.finish()
    return parser.response()


class TrimmedText:
    """Text of one part of a response, as it comes. Blanks are passed on with the text after them.

    on_text: called with the text.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._blanks: list[str] = []

    def add(self, text: str) -> None:
        """Add text."""
        kept = text.rstrip(_BLANKS)
        if kept:
            self._on_text(self.take_blanks() + kept)
        if len(kept) < len(text):
            self._blanks.append(text[len(kept) :])

    def take_blanks(self) -> str:
        """Return and remove the waiting blanks."""
        blanks = "".join(self._blanks)
        self._blanks = []
        return blanks
