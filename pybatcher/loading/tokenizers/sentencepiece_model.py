"""Build a tokenizer from tokenizer.model, for checkpoints that have no tokenizer.json.

The file is a `ModelProto` of SentencePiece, a protobuf message with the pieces, the trainer's
settings and the normalisation of texts. sentencepiece_model.proto defines the field numbers.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerBackend

from ...errors import ModelFormatError
from ..checkpoints.fields import shown
from .character_map import map_characters
from .merges import merges_of_scores

__all__ = [
    "MAX_PIECE",
    "MAX_SENTENCEPIECE_BYTES",
    "SPACE",
    "SentencePieceModel",
    "read_sentencepiece",
]

MAX_SENTENCEPIECE_BYTES = 2**24

SPACE = "\u2581"  # replaces a space
_MAX_PIECES = 2**20
MAX_PIECE = 2**8  # characters; finding the merges of a piece is quadratic in its length
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of pieces
_UNIGRAM, _BPE = 1, 2  # types of models

Message = Mapping[int, list[Any]]
"""The values of a message's fields, by number: an int for a varint, else bytes."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The content of a tokenizer.model; the lists are by token id.

    special_tokens: the texts of unk_token, bos_token and eos_token, as far as the file has them.
    charsmap: the normalisation of characters, as SentencePiece compiles it; may be empty.
    adds_prefix: True if a space is added before a text.
    removes_spaces: True if spaces at the ends of a text are removed and repeated spaces merged.
    """

    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    special_tokens: dict[str, str]
    is_bpe: bool
    byte_fallback: bool
    unknown_id: int
    charsmap: bytes
    adds_prefix: bool
    removes_spaces: bool
    escapes_spaces: bool

    def build(
        self, added: Mapping[int, AddedToken], *, legacy: bool
    ) -> tuple[TokenizerBackend, dict[int, AddedToken]]:
        """Build the tokenizer, which encodes a text as SentencePiece does; return it and `added`.

        `map_characters` completes it, after all tokens were added.

        added: tokens by id. Added tokens of BPE replace pieces. The returned tokens are not
            normalised, because they have to be found before the text between them gets a prefix.
        legacy: True if the prefix is also added after each special token, not only to a text.
        Raises the library's exceptions for invalid pieces.
        """
        backend = self._build({i: token.content for i, token in added.items()}, legacy)
        flags = {"normalized": False} if self.adds_prefix else {}
        return backend, {
            i: AddedToken(**{**token.__getstate__(), **flags}) for i, token in added.items()
        }

    def _build(self, names: Mapping[int, str], legacy: bool) -> TokenizerBackend:
        pieces = self._renamed(names) if self.is_bpe else self.pieces
        whole = self._of_kind(_USER_DEFINED, pieces)
        backend = TokenizerBackend(self._bpe(pieces, whole) if self.is_bpe else self._unigrams())
        backend.normalizer = normalizers.Sequence(self._normalizers(legacy))
        steps: list[Any] = []
        if self.adds_prefix:
            scheme = "always" if legacy else "first"
            steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False))
        if whole:  # these are never part of another piece
            found = "|".join(map(re.escape, sorted(whole, key=len, reverse=True)))
            steps.append(pre_tokenizers.Split(Regex(found), behavior="isolated"))
        if steps:
            backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        backend.decoder = decoders.Sequence(self._decoders())
        controls = self._of_kind(_CONTROL, pieces)
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in controls]
        )
        return backend

    def map_characters(self, backend: TokenizerBackend) -> None:
        """Let a complete tokenizer of `build` replace characters as SentencePiece does."""
        if self.charsmap:
            map_characters(backend, self.charsmap, self._of_kind(_USER_DEFINED, self.pieces))

    def _of_kind(self, kind: int, pieces: list[str]) -> list[str]:
        return [text for text, k in zip(pieces, self.kinds, strict=True) if k == kind]

    def _renamed(self, names: Mapping[int, str]) -> list[str]:
        kept = {text for i, text in enumerate(self.pieces) if i not in names}
        return [
            names[i] if i in names and names[i] not in kept else text
            for i, text in enumerate(self.pieces)
        ]

    def _bpe(self, pieces: list[str], whole: list[str]) -> models.BPE:
        ids = {text: i for i, text in enumerate(pieces)}
        scored = zip(pieces, self.scores, self.kinds, strict=True)
        of_normal = {text: score for text, score, kind in scored if kind == _NORMAL}
        return models.BPE(
            ids,
            merges_of_scores(of_normal),
            unk_token=pieces[self.unknown_id],
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
            ignore_merges=bool(whole),
        )

    def _unigrams(self) -> models.Unigram:
        scored = list(zip(self.pieces, self.scores, strict=True))
        return models.Unigram(scored, unk_id=self.unknown_id, byte_fallback=self.byte_fallback)

    def _normalizers(self, legacy: bool) -> list[Any]:
        steps: list[Any] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.removes_spaces:
            steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        if self.escapes_spaces:
            steps.append(normalizers.Replace(" ", SPACE))
        if self.adds_prefix and legacy:  # Metaspace adds no prefix to a text that begins with one
            steps.append(normalizers.Replace(Regex(rf"\A{SPACE}"), 2 * SPACE))
        return steps

    def _decoders(self) -> list[Any]:
        steps: list[Any] = [decoders.Replace(SPACE, " ")]
        if self.byte_fallback:
            steps.append(decoders.ByteFallback())
        if self.byte_fallback or self.adds_prefix:
            steps.append(decoders.Fuse())
        if self.adds_prefix:
            steps.append(decoders.Strip(" ", 1, 0))
        return steps


def read_sentencepiece(data: bytes, source: str) -> SentencePieceModel:
    """Read the content of a tokenizer.model. Raises ModelFormatError, which names `source`."""
    try:
        return _read_model(data)
    except ModelFormatError as error:
        raise ModelFormatError(f"{source}: not a valid SentencePiece model: {error}") from error


def _read_model(data: bytes) -> SentencePieceModel:
    model = _read_message(data)
    trainer = _child(model, 2)
    normalizer = _child(model, 3)
    found = model.get(1, ())
    if not 0 < len(found) <= _MAX_PIECES:
        raise ModelFormatError(f"it has {len(found)} pieces; expected 1 to {_MAX_PIECES}")
    pieces = [_read_message(_bytes(piece, "a piece")) for piece in found]
    texts = [_text(piece, 1, "") for piece in pieces]
    longest = len(max(texts, key=len))
    if longest > MAX_PIECE:
        raise ModelFormatError(f"a piece has {longest} characters; expected at most {MAX_PIECE}")
    text, count = Counter(texts).most_common(1)[0]
    if count > 1:
        raise ModelFormatError(f"the piece {shown(text)} is there {count} times")
    kind = _integer(trainer, 3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise ModelFormatError(f"its model_type is {kind}; expected 1 (unigram) or 2 (BPE)")
    if _integer(trainer, 24, 0):
        raise ModelFormatError("its treat_whitespace_as_suffix is true; expected false")
    unknown_id = _integer(trainer, 40, 0)
    if not 0 <= unknown_id < len(texts):
        raise ModelFormatError(f"its unk_id is {unknown_id}; expected one of {len(texts)} pieces")
    ids = {"bos_token": _integer(trainer, 41, 1), "eos_token": _integer(trainer, 42, 2)}
    ids["unk_token"] = unknown_id
    return SentencePieceModel(
        pieces=texts,
        scores=[_score(piece) for piece in pieces],
        kinds=[_integer(piece, 3, _NORMAL) for piece in pieces],
        special_tokens={name: texts[i] for name, i in ids.items() if 0 <= i < len(texts)},
        is_bpe=kind == _BPE,
        byte_fallback=bool(_integer(trainer, 35, 0)),
        unknown_id=unknown_id,
        charsmap=_bytes(_last(normalizer, 2, b""), "precompiled_charsmap"),
        adds_prefix=bool(_integer(normalizer, 3, 1)),
        removes_spaces=bool(_integer(normalizer, 4, 1)),
        escapes_spaces=bool(_integer(normalizer, 5, 1)),
    )


def _read_message(data: bytes) -> Message:
    found = defaultdict(list)
    for number, value in _read_fields(data):
        found[number].append(value)
    return found


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _read_varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ModelFormatError(f"byte {at} begins a field of type {wire}")
        if size > len(data) - at:
            raise ModelFormatError(f"it ends {size - len(data) + at} bytes before a field does")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint (seven bits in each byte) and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ModelFormatError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ModelFormatError(f"byte {at} ends a number of more than 64 bits")


def _last(message: Message, number: int, default: Any) -> Any:
    """Return a field's value: the last one if the field is repeated."""
    values = message.get(number)
    return values[-1] if values else default


def _child(message: Message, number: int) -> Message:
    return _read_message(_bytes(_last(message, number, b""), f"field {number}"))


def _integer(message: Message, number: int, default: int) -> int:
    value = _last(message, number, default)
    if not isinstance(value, int):
        raise ModelFormatError(f"field {number} is {shown(value)}; expected a whole number")
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise ModelFormatError(f"{what} is {value}; expected bytes")
    return value


def _text(message: Message, number: int, default: str) -> str:
    value = _bytes(_last(message, number, default.encode()), "a text")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"the text {shown(value)} is not UTF-8") from error


def _score(piece: Message) -> float:
    value = _last(piece, 2, bytes(4))
    score = struct.unpack("<f", value)[0] if isinstance(value, bytes) and len(value) == 4 else None
    if score is None or not math.isfinite(score):
        raise ModelFormatError(f"the score {shown(value)} of a piece is not a finite number")
    return float(score)
