"""Unigram tokenizer of a GGUF file (tokenizer.ggml.model "t5"): T5 and XLM-RoBERTa.

The tokenizer splits a text into the tokens with the greatest sum of scores (log probabilities).
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer as TokenizerBackend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from ..checkpoints.fields import Fields
from .gguf_vocabulary import Built, Vocabulary, read_numbers

__all__ = ["with_unigrams"]


def with_unigrams(fields: Fields, vocabulary: Vocabulary, ids: dict[str, int | None]) -> Built:
    """Build the tokenizer of T5 or XLM-RoBERTa."""
    key = "tokenizer.ggml.scores"
    scores = read_numbers(fields, key, len(vocabulary.tokens)).astype(np.float64)
    if not np.isfinite(scores).all():
        raise fields.error(key, "finite numbers")
    pieces = list(zip(vocabulary.tokens, scores.tolist(), strict=True))
    unknown = vocabulary.unknown(ids["unk_token"])
    unknown_id = None if unknown is None else vocabulary.tokens.index(unknown)
    backend = TokenizerBackend(models.Unigram(pieces, unk_id=unknown_id, byte_fallback=False))
    charsmap, value = b"", fields.get("tokenizer.ggml.precompiled_charsmap")
    if value is not None:
        if not isinstance(value, np.ndarray) or value.dtype not in (np.uint8, np.int8):
            raise fields.error("tokenizer.ggml.precompiled_charsmap", "an array of bytes")
        charsmap = value.tobytes()
        backend.normalizer = normalizers.Precompiled(charsmap)
    prefixed = fields.boolean("tokenizer.ggml.add_space_prefix", True)
    scheme = "always" if prefixed else "never"
    marks: PreTokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    if fields.boolean("tokenizer.ggml.remove_extra_whitespaces", False):
        marks = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    backend.pre_tokenizer = marks
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return Built(backend, ids["bos_token"], ids["eos_token"], adds_after=True, charsmap=charsmap)
