"""Read the tokenizer and the chat template from the metadata of a GGUF file.

Two types: "gpt2", byte-level BPE with a list of merges, and "llama", SentencePiece BPE, whose
merges follow from the tokens' scores.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as TokenizerBackend

from ..errors import ModelFormatError
from .fields import Fields, shown
from .gguf_pretokenizers import PRE_TOKENIZERS
from .loaded_model import TokenizerParts
from .merges import merges_of_scores, split_merges

__all__ = ["read_tokenizer"]

_MAX_TEMPLATE = 2**20  # characters
_MAX_ADDED_TEXT = 2**22  # characters of all added tokens; every text is searched for them
_MAX_PIECE = 2**8  # characters; finding the merges of a piece is quadratic in its length
_SPACE = "\u2581"  # stands for a space in SentencePiece
_ID_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",  # misspelled in the format
    "cls_token": "tokenizer.ggml.cls_token_id",
}
_OTHER_END_KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_END_TOKEN_TEXTS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Tokens with these texts end an output, as in llama.cpp: a GGUF names only one EOS token."""


# Token types: tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The vocabulary.

    tokens, kinds: texts and token types, by id.
    ids: by text, without unused and empty tokens.
    """

    tokens: list[str]
    kinds: NDArray[np.int64]
    ids: dict[str, int]

    def of_kind(self, *kinds: int) -> list[str]:
        """Return the used tokens of these types, in the order of their ids."""
        found = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return [self.tokens[i] for i in found if self.tokens[i] in self.ids]


def read_tokenizer(fields: Fields, vocab_size: int) -> TokenizerParts:
    """Return the tokenizer of a GGUF file; its `backend` is None where the file has none.

    vocab_size: rows of the token embedding; every id is below it. Raises ModelFormatError
    for an unknown tokenizer type or a damaged vocabulary.
    """
    model = fields.text("tokenizer.ggml.model", "none")
    template = fields.text("tokenizer.chat_template", None)
    if template is not None and len(template) > _MAX_TEMPLATE:
        raise ModelFormatError(
            f"{fields.source}: tokenizer.chat_template has {len(template)} characters; "
            f"expected at most {_MAX_TEMPLATE}"
        )
    if model not in ("gpt2", "llama", "none", "no_vocab"):
        raise fields.error("tokenizer.ggml.model", "'gpt2', 'llama' or 'none'")
    ids = {name: _token_id(fields, key, vocab_size) for name, key in _ID_KEYS.items()}
    ends = {ids["eos_token"], *(_token_id(fields, key, vocab_size) for key in _OTHER_END_KEYS)}
    if model in ("none", "no_vocab"):
        return _parts(None, template, ids, ends, [])
    vocabulary = _read_vocabulary(fields, vocab_size)
    added = set(vocabulary.of_kind(_CONTROL, _USER_DEFINED))
    ends |= {vocabulary.ids[text] for text in _END_TOKEN_TEXTS if text in added}
    try:
        make = _byte_level if model == "gpt2" else _sentencepiece
        backend, add_bos = make(fields, vocabulary)
        _add_tokens(backend, vocabulary, fields)
        _set_post_processor(backend, vocabulary, fields, add_bos, ids)
    except ModelFormatError:
        raise
    except Exception as error:  # the library raises no more specific type
        raise ModelFormatError(
            f"{fields.source}: tokenizer.ggml: not a valid tokenizer: {error}"
        ) from error
    return _parts(backend, template, ids, ends, vocabulary.tokens)


def _parts(
    backend: TokenizerBackend | None,
    template: str | None,
    ids: dict[str, int | None],
    ends: set[int | None],
    tokens: list[str],
) -> TokenizerParts:
    return TokenizerParts(
        backend=backend,
        chat_template=template,
        special_tokens={
            name: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)
        },
        bos_token_id=ids["bos_token"],
        eos_token_ids=frozenset(i for i in ends if i is not None),
    )


def _token_id(fields: Fields, key: str, vocab_size: int) -> int | None:
    """Return a key's token id; None where it is absent, -1 or 2**32 - 1 (both mean none)."""
    value = fields.get(key)
    if value in (-1, 2**32 - 1):
        return None
    token_id: int | None = fields.integer(key, 0, vocab_size - 1, None)
    return token_id


def _read_vocabulary(fields: Fields, vocab_size: int) -> _Vocabulary:
    key = "tokenizer.ggml.tokens"
    tokens = _texts(fields, key)
    if not 0 < len(tokens) <= vocab_size:
        raise ModelFormatError(
            f"{fields.source}: {key} has {len(tokens)} elements; "
            f"expected 1 to {vocab_size}, the rows of the token embedding"
        )
    key = "tokenizer.ggml.token_type"
    kinds = _numbers(fields, key, len(tokens), np.full(len(tokens), _NORMAL)).astype(np.int64)
    ids: dict[str, int] = {}
    for token_id, (token, unused) in enumerate(zip(tokens, kinds == _UNUSED, strict=True)):
        if unused or not token:
            continue
        if ids.setdefault(token, token_id) != token_id:
            raise ModelFormatError(
                f"{fields.source}: tokenizer.ggml.tokens has {shown(token)} "
                f"at {ids[token]} and at {token_id}; expected every token once"
            )
    return _Vocabulary(tokens, kinds, ids)


def _byte_level(fields: Fields, vocabulary: _Vocabulary) -> tuple[TokenizerBackend, bool]:
    """Build a byte-level BPE tokenizer from listed merges; also: whether it adds BOS."""
    key = "tokenizer.ggml.pre"
    name = fields.text(key, None)
    if name is None:
        name = "default"
        warnings.warn(
            f"{fields.source}: {key} is missing, so that texts are cut into words as "
            "llama.cpp does by default, which may not be how the model was trained",
            stacklevel=2,
        )
    if name not in PRE_TOKENIZERS:
        raise fields.error(key, "one of " + ", ".join(map(repr, PRE_TOKENIZERS)))
    how = PRE_TOKENIZERS[name]
    merges = split_merges(_texts(fields, "tokenizer.ggml.merges"), fields.source)
    backend = TokenizerBackend(models.BPE(vocabulary.ids, merges, ignore_merges=how.ignore_merges))
    normalizer = how.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = how.make()
    backend.decoder = decoders.ByteLevel()
    return backend, how.add_bos


def _sentencepiece(fields: Fields, vocabulary: _Vocabulary) -> tuple[TokenizerBackend, bool]:
    """Build a SentencePiece BPE tokenizer with byte fallback; also: whether it adds BOS."""
    key = "tokenizer.ggml.scores"
    n_tokens = len(vocabulary.tokens)
    scores = _numbers(fields, key, n_tokens).astype(np.float64)
    if np.isnan(scores).any():
        raise fields.error(key, "numbers")
    others = (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)
    by_id = scores.tolist()
    kept = vocabulary.ids.keys() - set(vocabulary.of_kind(*others))
    pieces = {token: by_id[i] for token, i in vocabulary.ids.items() if token in kept}
    longest = max(pieces, key=len, default="")
    if len(longest) > _MAX_PIECE:
        raise ModelFormatError(
            f"{fields.source}: tokenizer.ggml.tokens has one of {len(longest)} characters; "
            f"expected at most {_MAX_PIECE}"
        )
    unknown = vocabulary.of_kind(_UNKNOWN)
    backend = TokenizerBackend(
        models.BPE(
            vocabulary.ids,
            merges_of_scores(pieces),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = fields.boolean("tokenizer.ggml.add_space_prefix", True)
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    stages = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        marks = [normalizers.Prepend(_SPACE), *marks]
        stages.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(marks)
    backend.decoder = decoders.Sequence(stages)
    return backend, True


def _add_tokens(backend: TokenizerBackend, vocabulary: _Vocabulary, fields: Fields) -> None:
    """Register the special and the user-defined tokens, which match before pre-tokenization."""
    special = vocabulary.of_kind(_UNKNOWN, _CONTROL)
    plain = vocabulary.of_kind(_USER_DEFINED)
    n_characters = sum(map(len, special)) + sum(map(len, plain))
    if n_characters > _MAX_ADDED_TEXT:
        raise ModelFormatError(
            f"{fields.source}: tokenizer.ggml.tokens has {n_characters} characters in special and "
            f"user-defined tokens; expected at most {_MAX_ADDED_TEXT}"
        )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])


def _set_post_processor(
    backend: TokenizerBackend,
    vocabulary: _Vocabulary,
    fields: Fields,
    add_bos: bool,
    ids: dict[str, int | None],
) -> None:
    """Set the post-processor: BOS before and EOS after a text, by the file or `add_bos`."""
    template: list[str] = ["$A"]
    pieces: list[Any] = []
    for name, default in (("bos", add_bos), ("eos", False)):
        key = f"tokenizer.ggml.add_{name}_token"
        token_id = ids[f"{name}_token"]
        if not fields.boolean(key, default):
            continue
        if token_id is None or token_id >= len(vocabulary.tokens):
            if fields.get(key):
                raise fields.error(key, f"false, as there is no tokenizer.ggml.{name}_token_id")
            continue
        template = [name, *template] if name == "bos" else [*template, name]
        pieces.append({"id": name, "ids": [token_id], "tokens": [vocabulary.tokens[token_id]]})
    if pieces:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=pieces
        )


def _texts(fields: Fields, key: str) -> list[str]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise fields.error(key, "an array of texts")
    return value


def _numbers(
    fields: Fields, key: str, n_values: int, default: NDArray[Any] | None = None
) -> NDArray[Any]:
    value = fields.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, np.ndarray) or value.dtype == np.bool_ or value.size != n_values:
        raise fields.error(key, f"an array of {n_values} numbers")
    return value
