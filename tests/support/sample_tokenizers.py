"""Tokenizers of every kind that the supported models have, made in memory."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pybatcher.testing.checkpoints import make_tokenizer

WORDS = ("▁the", "▁fox", "fox", "▁", "▁▁", "s", "日", "é", "▁日本", "<0x", "a▁b", "  ", "�")
KINDS = ("byte level", "llama", "metaspace", "metaspace never", "none", "unknown")


def build(kind: str) -> Tokenizer:
    if kind == "byte level":
        tokenizer = make_tokenizer()
        tokenizer.add_tokens(["日本 plain", "Ġadded", "caf\u00e9 \u20ac"])
        return tokenizer
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<unk>", "<s>", "</s>", *byte_tokens, *WORDS]
    vocabulary = {token: index for index, token in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["added", " spaced "])
    if kind == "llama":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    elif kind.startswith("metaspace"):
        scheme = "never" if kind.endswith("never") else "always"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    elif kind == "unknown":
        tokenizer.decoder = decoders.Replace(Regex("▁+"), "_")
    return tokenizer
