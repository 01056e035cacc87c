"""WordPiece tokenizer of a GGUF file (tokenizer.ggml.model "bert"), equal to BERT's own.

The file prefixes tokens that begin a word with U+2581. BERT's tokenizer.json prefixes the other
tokens with "##".
"""

from __future__ import annotations

from tokenizers import Tokenizer as TokenizerBackend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ..checkpoints.fields import Fields
from .gguf_vocabulary import Built, TokenType, Vocabulary

__all__ = ["spelt_as_word_pieces", "with_word_pieces"]

_WORD_BEGINS, _WORD_GOES_ON = "\u2581", "##"
_MAX_WORD = 100  # characters, as in BERT's tokenizer.json; a longer word is unknown


def with_word_pieces(fields: Fields, vocabulary: Vocabulary, ids: dict[str, int | None]) -> Built:
    """Build the tokenizer of BERT from a vocabulary that `spelt_as_word_pieces` returned."""
    spelt = spelt_as_word_pieces(vocabulary)
    unknown = spelt.unknown(ids["unk_token"]) or "[UNK]"
    backend = TokenizerBackend(
        models.WordPiece(spelt.ids, unk_token=unknown, max_input_chars_per_word=_MAX_WORD)
    )
    lowercase = fields.boolean("tokenizer.ggml.normalizer.lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=fields.boolean("tokenizer.ggml.normalizer.strip_accents", lowercase),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(_WORD_GOES_ON)
    return Built(
        backend,
        _first(ids["cls_token"], ids["bos_token"], spelt.ids.get("[CLS]")),
        _first(ids["sep_token"], spelt.ids.get("[SEP]")),
        adds_before=True,
        adds_after=True,
        file_decides=False,
    )


def spelt_as_word_pieces(vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary with its tokens spelt as in tokenizer.json."""
    kept = set(vocabulary.of_kind(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED))

    def spelling(token: str) -> str:
        return token if token in kept else _spelling(token)

    ids = {spelling(token): token_id for token, token_id in vocabulary.ids.items()}
    return Vocabulary([*map(spelling, vocabulary.tokens)], vocabulary.kinds, ids)


def _spelling(token: str) -> str:
    """Return a token of the file as tokenizer.json spells it; both spell "[unused1]" alike."""
    if token.startswith("[") and token.endswith("]"):
        return token
    begins = token.startswith(_WORD_BEGINS)
    return token.removeprefix(_WORD_BEGINS) if begins else _WORD_GOES_ON + token


def _first(*ids: int | None) -> int | None:
    return next((each for each in ids if each is not None), None)
