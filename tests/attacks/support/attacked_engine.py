"""The options and the prompt of the engines that the attacks are made on."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {
    "dtype": "f32",
    "kv_dtype": "f32",
    "device": "cpu",
    "n_ctx": 96,
    "n_parallel": 3,
    "n_ubatch": 8,
    "n_threads": 1,
    "block_size": 16,
}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
