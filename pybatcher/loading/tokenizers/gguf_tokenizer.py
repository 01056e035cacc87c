"""Read the tokenizer and the chat template from the metadata of a GGUF file.

The types are "gpt2" (byte-level BPE with a list of merges), "llama" and "gemma4" (SentencePiece
BPE), "bert" (WordPiece) and "t5" (unigram).
"""

from __future__ import annotations

import warnings
from pathlib import Path

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as TokenizerBackend

from ...errors import ModelFormatError
from ..checkpoints.fields import Fields, shown
from ..checkpoints.json_file import read_text
from ..checkpoints.loaded_model import TokenizerParts
from ..checkpoints.model_files import is_file
from .added_tokens import surround_texts
from .character_map import map_characters
from .gguf_pretokenizers import PRE_TOKENIZERS
from .gguf_sentencepiece import with_listed_merges, with_scores
from .gguf_unigram import with_unigrams
from .gguf_vocabulary import Built, TokenType, Vocabulary, read_texts, read_vocabulary
from .gguf_wordpiece import spelt_as_word_pieces, with_word_pieces
from .growth import check_growth
from .merges import split_merges
from .recommended_sampling import IN_GGUF, recommended_sampling
from .tokenizer_files import MAX_TOKENIZER_BYTES, building_tokenizer, private_backend

__all__ = ["read_tokenizer"]

_MAX_TEMPLATE = 2**20  # characters
_TOOL_TEMPLATE = "tokenizer.chat_template.tool_use"
_MAX_ADDED_TEXT = 2**22  # characters of all added tokens; every text is searched for them
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
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "[EOT]",
    "[EOS]",
    "<EOT>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Texts of tokens that end an output, as in llama.cpp: a GGUF file names only one EOS token."""
_ENDS_NO_OUTPUT = "<|end|>"
_BESIDE = frozenset({"<|return|>", "<|call|>"})
"""In a vocabulary with these two tokens (gpt-oss), <|end|> ends a message, not an output."""


def read_tokenizer(
    fields: Fields, vocab_size: int, directory: Path | None = None
) -> TokenizerParts:
    """Return the tokenizer of a GGUF file; `backend` is None for a file without a tokenizer.

    vocab_size: rows of the token embedding; every id is below it.
    directory: the directory of the file. A tokenizer.json in it replaces a tokenizer of an
        unknown kind.
    Raises ModelFormatError for an unknown tokenizer type or a damaged vocabulary.
    """
    model = fields.text("tokenizer.ggml.model", "none")
    templates = _template(fields, "tokenizer.chat_template"), _template(fields, _TOOL_TEMPLATE)
    ids = {name: _token_id(fields, key, vocab_size) for name, key in _ID_KEYS.items()}
    ends = {ids["eos_token"], *(_token_id(fields, key, vocab_size) for key in _OTHER_END_KEYS)}
    sampling = recommended_sampling(fields, IN_GGUF)
    if model in ("none", "no_vocab"):
        return _parts(None, templates, ids, ends, [], sampling)
    vocabulary = read_vocabulary(fields, vocab_size)
    added = set(vocabulary.of_kind(TokenType.CONTROL, TokenType.USER_DEFINED))
    ends |= {vocabulary.ids[text] for text in _END_TOKEN_TEXTS if text in added}
    if added >= _BESIDE:
        ends.discard(vocabulary.ids.get(_ENDS_NO_OUTPUT))
    with building_tokenizer(f"{fields.source}: tokenizer.ggml"):
        stand_in = _stand_in(fields, model, vocabulary, directory)
        if stand_in is not None:
            return _parts(stand_in, templates, ids, ends, vocabulary.tokens, sampling)
        built = _build(fields, model, vocabulary, ids)
        if model == "bert":
            vocabulary = spelt_as_word_pieces(vocabulary)
        _add_tokens(built.backend, vocabulary, fields)
        _set_post_processor(built, vocabulary, fields)
        check_growth(built.backend, f"{fields.source}: tokenizer.ggml")
        if built.charsmap:
            map_characters(built.backend, built.charsmap)
    return _parts(built.backend, templates, ids, ends, vocabulary.tokens, sampling)


def _template(fields: Fields, name: str) -> str | None:
    template: str | None = fields.text(name, None)
    if template is not None and len(template) > _MAX_TEMPLATE:
        raise ModelFormatError(
            f"{fields.source}: {name} has {len(template)} characters; "
            f"expected at most {_MAX_TEMPLATE}"
        )
    return template


def _build(fields: Fields, model: str, vocabulary: Vocabulary, ids: dict[str, int | None]) -> Built:
    """Build the tokenizer of a known type."""
    if model == "gpt2":
        return _byte_level(fields, vocabulary, ids)
    return _BUILDERS[model](fields, vocabulary, ids)


def _stand_in(
    fields: Fields, model: str, vocabulary: Vocabulary, directory: Path | None
) -> TokenizerBackend | None:
    """Return the tokenizer of `directory` if the file's own kind is unknown, else None.

    Raises ModelFormatError if tokenizer.json is absent or has another vocabulary.
    """
    key = "tokenizer.ggml.model"
    if model == "gpt2":
        key = "tokenizer.ggml.pre"
        if fields.text(key, "default") in {*PRE_TOKENIZERS, *_WITHOUT_WORDS}:
            return None
    elif model in _BUILDERS:
        return None
    path = None if directory is None else directory / "tokenizer.json"
    if path is None or not is_file(path):
        kind = "pre-tokenizer" if key.endswith("pre") else "type of tokenizer"
        raise fields.error(
            key,
            f"a {kind} that is known here; put the model's own tokenizer.json beside the file, "
            "or open the model as a Hugging Face directory",
        )
    backend = private_backend(read_text(path, MAX_TOKENIZER_BYTES), str(path))
    for token in vocabulary.of_kind(TokenType.NORMAL):
        if backend.token_to_id(token) != vocabulary.ids[token]:
            raise ModelFormatError(
                f"{path}: {shown(token)} has the id {backend.token_to_id(token)}; expected "
                f"{vocabulary.ids[token]}, as in {fields.source}: it is of another model"
            )
    return backend


def _parts(
    backend: TokenizerBackend | None,
    templates: tuple[str | None, str | None],
    ids: dict[str, int | None],
    ends: set[int | None],
    tokens: list[str],
    sampling: dict[str, float],
) -> TokenizerParts:
    return TokenizerParts(
        backend=backend,
        chat_template=templates[0],
        tool_template=templates[1],
        special_tokens={
            name: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)
        },
        bos_token_id=ids["bos_token"],
        eos_token_ids=frozenset(i for i in ends if i is not None),
        sampling=sampling,
    )


def _token_id(fields: Fields, key: str, vocab_size: int) -> int | None:
    """Return a key's token id; None if it is absent, -1 or 2**32 - 1, which mean no token."""
    value = fields.get(key)
    if type(value) is int and value in (-1, 2**32 - 1):
        return None
    token_id: int | None = fields.integer(key, 0, vocab_size - 1, None)
    return token_id


def _byte_level(fields: Fields, vocabulary: Vocabulary, ids: dict[str, int | None]) -> Built:
    """Build a BPE tokenizer from listed merges; it is byte-level if texts are split into words."""
    key = "tokenizer.ggml.pre"
    name = fields.text(key, None)
    if name is None:
        name = "default"
        warnings.warn(
            f"{fields.source}: {key} is missing, so that texts are cut into words as "
            "llama.cpp does by default, which may not be how the model was trained",
            stacklevel=2,
        )
    if name in _WITHOUT_WORDS:
        return with_listed_merges(fields, vocabulary, ids, adds_bos=_WITHOUT_WORDS[name])
    how = PRE_TOKENIZERS[name]
    merges = split_merges(read_texts(fields, "tokenizer.ggml.merges"), fields.source)
    backend = TokenizerBackend(models.BPE(vocabulary.ids, merges, ignore_merges=how.ignore_merges))
    normalizer = how.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = how.make()
    backend.decoder = decoders.ByteLevel()
    return Built(backend, ids["bos_token"], ids["eos_token"], adds_before=how.add_bos)


def _add_tokens(backend: TokenizerBackend, vocabulary: Vocabulary, fields: Fields) -> None:
    """Register the special and the user-defined tokens; they match before pre-tokenization."""
    special = vocabulary.of_kind(TokenType.UNKNOWN, TokenType.CONTROL)
    plain = vocabulary.of_kind(TokenType.USER_DEFINED)
    n_characters = sum(map(len, special)) + sum(map(len, plain))
    if n_characters > _MAX_ADDED_TEXT:
        raise ModelFormatError(
            f"{fields.source}: tokenizer.ggml.tokens has {n_characters} characters in special and "
            f"user-defined tokens; expected at most {_MAX_ADDED_TEXT}"
        )
    name = fields.text("general.name", "").lower()
    kept = _KEPT_SPACES if "phi-3" in name or "phi3" in name else {*special, *plain}
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=t not in kept) for t in special]
    )
    backend.add_tokens([AddedToken(t, normalized=False, rstrip=t not in kept) for t in plain])


def _set_post_processor(built: Built, vocabulary: Vocabulary, fields: Fields) -> None:
    """Add BOS before and EOS after a text, as the file or the kind of its tokenizer specifies."""
    around = {}
    for name, token_id, default in (
        ("bos", built.before, built.adds_before),
        ("eos", built.after, built.adds_after),
    ):
        key = f"tokenizer.ggml.add_{name}_token"
        decides = built.file_decides in (True, name)
        if not (fields.boolean(key, default) if decides else default):
            continue
        if token_id is None or token_id >= len(vocabulary.tokens):
            if fields.get(key) and decides:
                raise fields.error(key, f"false, as there is no tokenizer.ggml.{name}_token_id")
            continue
        around[name] = (token_id, vocabulary.tokens[token_id])
    surround_texts(built.backend, around)


_BUILDERS = {
    "llama": with_scores,
    "gemma4": with_listed_merges,
    "bert": with_word_pieces,
    "t5": with_unigrams,
}
_WITHOUT_WORDS = {"gemma4": True, "granite-embed-multi-311m": True, "sarvam-moe": False}
"""Pre-tokenizers that do not split texts; True if a text begins with the BOS token."""

_KEPT_SPACES = {"<unk>", "<s>", "<|endoftext|>"}
"""Phi-3's added tokens without `rstrip`; its other added tokens also match the spaces after them,
as in its tokenizer.json."""
