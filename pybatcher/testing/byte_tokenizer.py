"""`byte_tokenizer`: one token per UTF-8 byte, so that characters span several tokens."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from ..text import Tokenizer

__all__ = ["BOS_TOKEN_ID", "EOS_TOKEN_ID", "byte_tokenizer"]

BOS_TOKEN_ID = 256
EOS_TOKEN_ID = 257


def byte_tokenizer(*special: str) -> Tokenizer:
    """Make a tokenizer of 258 tokens: the 256 bytes, `<bos>` (256) and `<eos>` (257).

    special: texts of further tokens.

    The ids of bytes are in the order of GPT-2's byte alphabet, not of their values.
    Encoding with special tokens puts `<bos>` before a text.
    """
    vocabulary = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    backend = Backend(BPE(vocabulary, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens(["<bos>", "<eos>", *special])
    backend.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_TOKEN_ID)]
    )
    return Tokenizer(backend, bos_token_id=BOS_TOKEN_ID, eos_token_ids=[EOS_TOKEN_ID])
