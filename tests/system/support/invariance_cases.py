"""What invariance is tested of: (CPU target, architecture, dtype, dtype of KV)."""

from __future__ import annotations

import itertools

from engine_helpers import TARGETS

LONGEST = 330  # past one segment of attention (256 positions)


BEST = TARGETS[-1]
CASES = [
    *itertools.product(TARGETS, ["mistral"], ["f32", "bf16", "int8", "int4"], ["auto"]),
    *itertools.product([BEST], ["qwen3", "gpt2"], ["f32", "bf16"], ["auto"]),
    (BEST, "llama", "f32", "bf16"),
    (BEST, "llama", "bf16", "f32"),
    *itertools.product(TARGETS, ["llama"], ["bf16"], ["f16", "int8"]),
]
