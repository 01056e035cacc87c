"""Added tokens and special tokens of a tokenizer, which match their text before any splitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as TokenizerBackend

from ..checkpoints.fields import Fields
from ..checkpoints.json_file import read_optional

__all__ = [
    "MAX_TOKEN_ID",
    "SPECIAL_TOKENS",
    "add_tokens",
    "added_tokens",
    "special_tokens",
    "surround_as_set",
    "surround_texts",
]

MAX_TOKEN_ID = 2**31 - 1
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def special_tokens(settings: Fields) -> dict[str, str]:
    """Return the special tokens by name; the file has a text or an object with `content`."""
    tokens = {}
    for name in SPECIAL_TOKENS:
        value: Any = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise settings.error(name, "a text, or an object with a text in content")
        if value is not None:
            tokens[name] = value
    return tokens


def added_tokens(directory: Path, settings: Fields) -> Iterator[tuple[int, AddedToken]]:
    """Yield the added tokens of tokenizer_config.json, with their ids.

    Older checkpoints list these tokens in added_tokens.json, without flags.
    """
    if "added_tokens_decoder" in settings:
        tokens = settings.child("added_tokens_decoder")
        for name in tokens.names():
            if not name.isascii() or not name.isdecimal() or len(name) > 10:
                raise settings.error("added_tokens_decoder", "an object of tokens by their ids")
            yield int(name), _added_token(tokens.child(name))
        return
    special = special_tokens(settings).values()
    added = read_optional(directory / "added_tokens.json")
    for text in added.names():
        yield added.integer(text, 0, MAX_TOKEN_ID), AddedToken(text, special=text in special)


def _added_token(fields: Fields) -> AddedToken:
    """Return a token with its flags; every flag may be absent in the file."""
    special = fields.boolean("special", False)
    flags = {name: fields.boolean(name, False) for name in ("single_word", "lstrip", "rstrip")}
    normalized = fields.boolean("normalized", not special)
    return AddedToken(fields.text("content"), special=special, normalized=normalized, **flags)


def add_tokens(backend: TokenizerBackend, tokens: dict[int, AddedToken], settings: Fields) -> None:
    """Add tokens in the order of their ids, and mark the special tokens, as transformers does.

    A token that would get another id is omitted. A token that the tokenizer already has gets the
    flags in `added_tokens_decoder`; added_tokens.json has no flags.
    """
    replaces = "added_tokens_decoder" in settings
    there = _tokens_there(backend)
    size = backend.get_vocab_size()
    new: dict[str, AddedToken] = {}
    changed = []
    for token_id in sorted(tokens):
        token = tokens[token_id]
        if backend.token_to_id(token.content) is None:
            if token.content and token_id == size + len(new):
                new.setdefault(token.content, token)
        elif replaces and repr(token) != repr(there.get(token.content)):
            changed.append(token)
    backend.add_tokens([*changed, *new.values()])
    _mark_special(backend, settings)


def _mark_special(backend: TokenizerBackend, settings: Fields) -> None:
    """Mark the tokens that the settings name as special; their other flags do not change."""
    there = _tokens_there(backend)
    marked = []
    for text in special_tokens(settings).values():
        if backend.token_to_id(text) is not None:
            token = there.get(text) or AddedToken(text, special=True)
            token.special = True
            marked.append(token)
    backend.add_special_tokens(marked)


def surround_as_set(backend: TokenizerBackend, settings: Fields) -> None:
    """Add BOS before and EOS after a text, as `add_bos_token` and `add_eos_token` specify."""
    named = special_tokens(settings)
    around = {}
    for name in ("bos", "eos"):
        token = named.get(f"{name}_token")
        token_id = None if token is None else backend.token_to_id(token)
        if settings.boolean(f"add_{name}_token", False) and token_id is not None:
            around[name] = (token_id, token)
    surround_texts(backend, around)


def surround_texts(backend: TokenizerBackend, around: Mapping[str, tuple[int, Any]]) -> None:
    """Set a post-processor that adds tokens before ("bos") and after ("eos") a text.

    around: the id and the text of each token, by "bos" and "eos"; either may be absent.
    """
    if around:
        backend.post_processor = processors.TemplateProcessing(
            single=[name for name in ("bos", "$A", "eos") if name in around or name == "$A"],
            special_tokens=[
                {"id": name, "ids": [token_id], "tokens": [token]}
                for name, (token_id, token) in around.items()
            ],
        )


def _tokens_there(backend: TokenizerBackend) -> dict[str, AddedToken]:
    return {token.content: token for token in backend.get_added_tokens_decoder().values()}
