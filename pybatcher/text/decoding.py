"""The decoders of the `tokenizers` library, one token at a time.

The library decodes a whole list of tokens. Each class here is the streaming form of one of its
decoders: fed token by token, then flushed, it returns the text that the library returns for the
whole list. A tokenizer's decoder is a chain of these.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["BYTE_ALPHABET", "Stage", "build_stages", "bytes_reader", "flushed", "through"]

_REPLACEMENT = "\ufffd"
_KEPT = "surrogateescape"  # each byte that is not UTF-8 is a surrogate, which encodes to the byte


class Stage(Protocol):
    """A step of decoding: takes tokens in order, and returns zero or more for each."""

    def push(self, token: str) -> list[str]:
        """Return the pieces of text that are certain once this token is known."""
        ...

    def flush(self) -> list[str]:
        """Return the pieces that were held back. No token follows."""
        ...


def build_stages(
    settings: dict[str, Any] | None, *, at_start: bool, errors: str = "replace"
) -> list[Stage] | None:
    """Return the chain for a decoder's JSON; None if a step of it has no streaming form.

    at_start: True if the first token begins the text, which drops its leading space.
    errors: the form of bytes that are not UTF-8, as in `bytes.decode`; the library's is "replace".
    """
    if settings is None:
        return [_JoinWithSpaces(at_start)]
    stages: list[Stage] = []
    fused = False
    for part in _parts(settings):
        if part["type"] == "Fuse":
            fused = True
            continue
        stage = _build_stage(part, at_start, fused, errors)
        if stage is None:
            return None
        fused = fused or part["type"] == "ByteLevel"
        stages.append(stage)
    return stages


def through(stages: list[Stage], pieces: list[str]) -> str:
    """Return the text that is certain once these pieces have gone through the stages."""
    for stage in stages:
        pieces = [out for piece in pieces for out in stage.push(piece)]
    return "".join(pieces)


def flushed(stages: list[Stage]) -> str:
    """Return the text that the stages held back. No token follows."""
    text = ""
    for index, stage in enumerate(stages):
        text += through(stages[index + 1 :], stage.flush())
    return text


def bytes_reader(settings: dict[str, Any] | None) -> Callable[[str], bytes] | None:
    """Return a function from a token to the bytes that it adds to a text after another token.

    A token that is a part of a character has the bytes of that part. None if a step of the decoder
    has no streaming form.
    """
    stages = build_stages(settings, at_start=False, errors=_KEPT)
    if stages is None:
        return None
    falls_back = any(isinstance(stage, _ByteFallback) for stage in stages)

    def read(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if falls_back else None
        if match is not None:
            return bytes([int(match[1], 16)])
        return (through(stages, [token]) + flushed(stages)).encode("utf-8", _KEPT)

    return read


def _parts(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return settings["decoders"] if settings["type"] == "Sequence" else [settings]


def _build_stage(
    settings: dict[str, Any], at_start: bool, fused: bool, errors: str
) -> Stage | None:
    """Return one step, or None. `fused`: the library joins all tokens before this step."""
    kind = settings["type"]
    if kind == "Strip" and fused and settings["stop"] == 0:
        return _StripStart(settings["content"], settings["start"] if at_start else 0)
    if fused:
        return None
    if kind == "ByteLevel":
        return _ByteLevel(errors)
    if kind == "ByteFallback":
        return _ByteFallback()
    if kind == "Replace" and "String" in settings["pattern"] and settings["pattern"]["String"]:
        return _Replace(settings["pattern"]["String"], settings["content"])
    if kind == "Metaspace":
        drops = at_start and settings["prepend_scheme"] != "never"
        return _Metaspace(settings["replacement"], drops)
    return None


class _ByteLevel:
    """Each character of a token is a byte (GPT-2's alphabet); the bytes are UTF-8."""

    def __init__(self, errors: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, token: str) -> list[str]:
        return [self._decoder.decode(_token_bytes(token))]

    def flush(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


class _ByteFallback:
    """Tokens such as <0xE2> are bytes. A run of them is UTF-8 as a whole, or all U+FFFD.

    So no part of a run is certain before its end.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, token: str) -> list[str]:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            return [*self.flush(), token]
        self._run.append(int(match[1], 16))
        return []

    def flush(self) -> list[str]:
        run, self._run = self._run, bytearray()
        try:
            return [run.decode("utf-8")] if run else []
        except UnicodeDecodeError:
            return [_REPLACEMENT] * len(run)


class _Replace:
    """Replaces a text in each token by another."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content

    def push(self, token: str) -> list[str]:
        return [token.replace(self._pattern, self._content)]

    def flush(self) -> list[str]:
        return []


class _Metaspace:
    """Replaces SentencePiece's mark by a space, and drops the marks of the first token."""

    def __init__(self, mark: str, drops: bool) -> None:
        self._mark = mark
        self._drops = drops

    def push(self, token: str) -> list[str]:
        space, self._drops = "" if self._drops else " ", False
        return [token.replace(self._mark, space)]

    def flush(self) -> list[str]:
        return []


class _StripStart:
    """Removes up to `count` leading `character`s of the whole text."""

    def __init__(self, character: str, count: int) -> None:
        self._character = character
        self._count = count

    def push(self, token: str) -> list[str]:
        while self._count and token:
            if token[0] != self._character:
                self._count = 0
                break
            token = token[1:]
            self._count -= 1
        return [token]

    def flush(self) -> list[str]:
        return []


class _JoinWithSpaces:
    """Puts a space between tokens, as the library does without a decoder."""

    def __init__(self, at_start: bool) -> None:
        self._first = at_start

    def push(self, token: str) -> list[str]:
        space, self._first = "" if self._first else " ", False
        return [space + token]

    def flush(self) -> list[str]:
        return []


# the syntax that Rust's parser accepts
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet.

    Visible Latin-1 stands for itself; the other bytes are U+0100 and the characters after it.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): byte for byte in visible}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()
"""The byte that each of the 256 characters stands for."""


def _token_bytes(token: str) -> bytes:
    """Return a token's bytes. A token with a character outside the alphabet is plain text."""
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
