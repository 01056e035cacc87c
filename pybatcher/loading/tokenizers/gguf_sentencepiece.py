"""SentencePiece BPE of a GGUF file: U+2581 replaces spaces, with byte fallback.

The tokenizer "llama" derives its merges from the tokens' scores; "gemma4" lists the merges.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer as TokenizerBackend
from tokenizers import decoders, models, normalizers

from ...errors import ModelFormatError
from ..checkpoints.fields import Fields
from .gguf_vocabulary import Built, TokenType, Vocabulary, read_numbers, read_texts
from .merges import Merges, merges_of_scores, split_merges
from .sentencepiece_model import MAX_PIECE, SPACE

__all__ = ["with_listed_merges", "with_scores"]


def with_scores(fields: Fields, vocabulary: Vocabulary, ids: dict[str, int | None]) -> Built:
    """Build the tokenizer of Llama 2, Mistral, Phi-3 and Gemma 1 to 3."""
    key = "tokenizer.ggml.scores"
    scores = read_numbers(fields, key, len(vocabulary.tokens)).astype(np.float64)
    if np.isnan(scores).any():
        raise fields.error(key, "numbers")
    others = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)
    by_id = scores.tolist()
    kept = vocabulary.ids.keys() - set(vocabulary.of_kind(*others))
    pieces = {token: by_id[i] for token, i in vocabulary.ids.items() if token in kept}
    longest = max(pieces, key=len, default="")
    if len(longest) > MAX_PIECE:
        raise ModelFormatError(
            f"{fields.source}: tokenizer.ggml.tokens has one of {len(longest)} characters; "
            f"expected at most {MAX_PIECE}"
        )
    backend = _bpe(vocabulary, merges_of_scores(pieces), vocabulary.unknown(None))
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    stages = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.boolean("tokenizer.ggml.add_space_prefix", True):
        marks = [normalizers.Prepend(SPACE), *marks]
        stages.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(marks)
    backend.decoder = decoders.Sequence(stages)
    return Built(backend, ids["bos_token"], ids["eos_token"], adds_before=True)


def with_listed_merges(
    fields: Fields, vocabulary: Vocabulary, ids: dict[str, int | None], *, adds_bos: bool = True
) -> Built:
    """Build the tokenizer of Gemma 4: it merges over the whole text and adds no space prefix.

    adds_bos: True if a text begins with the BOS token in any case, because early files of Gemma 4
        have a wrong key; False if the file decides. It always decides on EOS, as in llama.cpp.
    """
    merges = split_merges(read_texts(fields, "tokenizer.ggml.merges"), fields.source)
    backend = _bpe(vocabulary, merges, vocabulary.unknown(ids["unk_token"]))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    stages = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(stages)
    bos, eos = ids["bos_token"], ids["eos_token"]
    if not adds_bos:
        return Built(backend, bos, eos)
    return Built(backend, bos, eos, adds_before=True, file_decides="eos")


def _bpe(vocabulary: Vocabulary, merges: Merges, unknown: str | None) -> TokenizerBackend:
    return TokenizerBackend(
        models.BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
