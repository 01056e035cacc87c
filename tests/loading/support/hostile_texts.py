"""Texts that are hard to tokenise: scripts, digits, spaces, marks, emoji, special-token texts."""

from __future__ import annotations

import random

PIECES = (
    *("Hello", " ", "  ", "   ", "\n", "\r\n", "\t", "\n\n", " \n ", "\u00a0", "\u3000", "\u200b"),
    *("'s", "'S", "'LL", " don't", "'\u017f", "\u2019s", "123", "12345678", "3.14", "-1e-5"),
    *("\uff11\uff12\uff13", "\u00bd", "\u0663\u0664", "\u2163", "日本語", "한국어", "é", "e\u0301"),
    *(
        "Å",
        "\u212b",
        "ß",
        "\u0131",
        "İ",
        "ﬁ",
        "अनुच्छेद",
        "ไทย",
        "العربية",
        "\U0001d518",
        "👍🏽",
        "👩‍👩‍👧",
        "🇩🇪",
    ),
    *("…", "—", "«»", "$", "€", "\\", "/", "//", "!!!", "?!", "...", "`|~", "abc_def", "camelCase"),
    *("<|im_start|>", "<|end|>", "<|", "<s>", "</s>", "<unk>", "<0x41>", "\u2581", "\u2581\u2581"),
    *(
        "\ufffd",
        "\0",
        "\x1f",
        "\x7f",
        "\ue000",
        "\u2028",
        "\u0085",
        "\U0010ffff",
        "x" * 40,
        " " * 40,
    ),
    *("once upon", " a time", "The fox", "http://a.b/c?d=e", "\u0130stanbul", "Ω", "the river"),
)


def hostile_texts(n: int = 300, seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    mixed = ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(n)]
    return [*PIECES, *mixed]
