"""`PromptReader`: from what a caller hands in to token ids, checked. Never holds up the loop."""

from __future__ import annotations

import asyncio
import operator
import reprlib
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidRequestError
from ..text import ChatTemplate, Tokenizer

__all__ = ["PromptReader"]

_SHORT_TEXT = 1024  # characters; tokenised in well under a millisecond
_SLICE = 8192  # token ids that are checked without letting the loop go on


class PromptReader:
    """Turns prompts and chats into token ids of one model.

    vocab_size: of the model, which a tokenizer with added tokens may exceed.
    """

    def __init__(
        self, tokenizer: Tokenizer, chat_template: ChatTemplate, *, vocab_size: int
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._vocab_size = vocab_size

    async def read(
        self, prompt: object, *, before: tuple[int, ...] = (), field: str = "prompt"
    ) -> tuple[int, ...]:
        """The prompt's token ids, at least one. A long text is tokenised on another thread.

        before: tokens that a text is put after; then it begins with none of its
        own special tokens. Token ids are taken as they are.
        field: what errors call it.

        Raises InvalidRequestError for what is empty, neither a text nor a
        sequence of whole numbers, or not in the vocabulary.
        """
        if not isinstance(prompt, str):
            ids = _listed(prompt, field, "a text or a sequence of token ids")
            return await _check_ids(ids, self._vocab_size, field)
        if not prompt:
            raise InvalidRequestError(f"{field} is ''; it must have at least one character")
        tokens = before + await self._encode(prompt, add_special_tokens=not before)
        if not tokens:
            raise InvalidRequestError(f"{field} is {reprlib.repr(prompt)}, which makes no token")
        return tokens

    async def read_ids(
        self, ids: object, *, field: str, may_be_empty: bool = False
    ) -> tuple[int, ...]:
        """Token ids, checked: at least one, or else none either. Raises InvalidRequestError."""
        listed = _listed(ids, field, "a sequence of token ids")
        if may_be_empty and not listed:
            return ()
        return await _check_ids(listed, self._vocab_size, field)

    async def read_chat(self, messages: object) -> tuple[int, ...]:
        """The token ids of a chat, up to where the assistant's turn begins.

        Rendering runs a program that came with the model: always on another
        thread. Raises InvalidRequestError for messages that are none,
        ModelFormatError for a broken template.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
            raise InvalidRequestError(
                f"messages is {reprlib.repr(messages)}; it must be a list of at least one "
                '{"role": ..., "content": ...}'
            )
        text = await asyncio.to_thread(self._chat_template.render, messages)
        tokens = await self._encode(text, add_special_tokens=False)
        if not tokens:
            raise InvalidRequestError("messages: the chat template makes no token of them")
        return tokens

    async def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        if len(text) <= _SHORT_TEXT:
            return self.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.encode, text, add_special_tokens=add_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The token ids of a text, right here. InvalidRequestError for what the model lacks."""
        tokens = tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        if tokens and max(tokens) >= self._vocab_size:
            raise InvalidRequestError(
                f"the text has the token {max(tokens)}, which the tokenizer knows and the model "
                f"does not: its token ids are from 0 to {self._vocab_size - 1}"
            )
        return tokens


def _listed(ids: object, field: str, wanted: str) -> Sequence[Any]:
    if hasattr(ids, "tolist"):  # numpy arrays and torch tensors
        ids = ids.tolist()
    if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes, bytearray, memoryview)):
        raise InvalidRequestError(
            f"{field} is {reprlib.repr(ids)}, of type {type(ids).__name__}; it must be {wanted}"
        )
    return ids


async def _check_ids(prompt: Sequence[Any], vocab_size: int, field: str) -> tuple[int, ...]:
    if not prompt:
        raise InvalidRequestError(f"{field} is {prompt!r}; it must have at least one token id")
    ids: list[int] = []
    for start in range(0, len(prompt), _SLICE):
        if start:
            await asyncio.sleep(0)
        ids += _check_slice(prompt[start : start + _SLICE], start, vocab_size, field)
    return tuple(ids)


def _check_slice(values: Sequence[Any], start: int, vocab_size: int, field: str) -> list[int]:
    try:
        if bool in set(map(type, values)):
            raise TypeError
        ids = list(map(operator.index, values))
    except TypeError:
        bad = next(i for i, value in enumerate(values) if not _is_whole_number(value))
        raise InvalidRequestError(
            f"{field}[{start + bad}] is {reprlib.repr(values[bad])}, of type "
            f"{type(values[bad]).__name__}; a token id is a whole number"
        ) from None
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise InvalidRequestError(
            f"{field}[{start + bad}] is {ids[bad]}; token ids of this model are "
            f"from 0 to {vocab_size - 1}"
        )
    return ids


def _is_whole_number(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
