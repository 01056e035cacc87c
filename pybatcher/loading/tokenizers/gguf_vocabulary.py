"""The vocabulary of a GGUF file: texts and types of its tokens (tokenizer.ggml.tokens)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as TokenizerBackend

from ...errors import ModelFormatError
from ..checkpoints.fields import Fields, shown

__all__ = ["Built", "TokenType", "Vocabulary", "read_numbers", "read_texts", "read_vocabulary"]


class TokenType:
    """The values of tokenizer.ggml.token_type."""

    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a GGUF file.

    tokens, kinds: texts and token types, by id.
    ids: ids by text, without unused and empty tokens.
    """

    tokens: list[str]
    kinds: NDArray[np.int64]
    ids: dict[str, int]

    def of_kind(self, *kinds: int) -> list[str]:
        """Return the used tokens of these types, in the order of their ids."""
        found = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return [self.tokens[i] for i in found if self.tokens[i] in self.ids]

    def unknown(self, token_id: int | None) -> str | None:
        """Return the unknown token: by its id, else by its type; None if the file has neither."""
        if token_id is not None and token_id < len(self.tokens):
            return self.tokens[token_id]
        return next(iter(self.of_kind(TokenType.UNKNOWN)), None)


@dataclass(frozen=True, slots=True)
class Built:
    """A tokenizer without its added tokens and without tokens around a text.

    before, after: ids of the tokens around a text; None: there is no such token.
    adds_before, adds_after: True if the token is added by default.
    file_decides: True if the file's keys decide on both tokens; "eos": on the token after a text
        alone; False: on neither.
    charsmap: the map of characters that the normaliser applies, for `map_characters` after all
        tokens were added.
    """

    backend: TokenizerBackend
    before: int | None
    after: int | None
    adds_before: bool = False
    adds_after: bool = False
    file_decides: bool | Literal["eos"] = True
    charsmap: bytes = b""


def read_vocabulary(fields: Fields, vocab_size: int) -> Vocabulary:
    """Return the vocabulary. vocab_size: rows of the token embedding; every id is below it.

    Raises ModelFormatError for a vocabulary without tokens or with too many, and for two tokens
    with the same text.
    """
    key = "tokenizer.ggml.tokens"
    tokens = read_texts(fields, key)
    if not 0 < len(tokens) <= vocab_size:
        raise ModelFormatError(
            f"{fields.source}: {key} has {len(tokens)} elements; "
            f"expected 1 to {vocab_size}, the rows of the token embedding"
        )
    key = "tokenizer.ggml.token_type"
    default = np.full(len(tokens), TokenType.NORMAL)
    kinds = read_numbers(fields, key, len(tokens), default, whole=True).astype(np.int64)
    ids: dict[str, int] = {}
    unused = kinds == TokenType.UNUSED
    for token_id, (token, skipped) in enumerate(zip(tokens, unused, strict=True)):
        if skipped or not token:
            continue
        if ids.setdefault(token, token_id) != token_id:
            raise ModelFormatError(
                f"{fields.source}: tokenizer.ggml.tokens has {shown(token)} "
                f"at {ids[token]} and at {token_id}; expected every token once"
            )
    return Vocabulary(tokens, kinds, ids)


def read_texts(fields: Fields, key: str) -> list[str]:
    """Return an array of texts. Raises ModelFormatError for any other value."""
    value = fields.get(key)
    if not isinstance(value, list):
        raise fields.error(key, "an array of texts")
    return value


def read_numbers(
    fields: Fields,
    key: str,
    n_values: int,
    default: NDArray[Any] | None = None,
    *,
    whole: bool = False,
) -> NDArray[Any]:
    """Return an array of `n_values` numbers; `default` if the key is absent.

    whole: True if only integers are valid. Raises ModelFormatError for any other value.
    """
    value = fields.get(key)
    if value is None and default is not None:
        return default
    kinds = "iu" if whole else "iuf"
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or value.size != n_values:
        raise fields.error(key, f"an array of {n_values} {'whole ' * whole}numbers")
    return value
