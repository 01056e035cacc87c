"""Parts of a tokenizer_config.json."""

from __future__ import annotations

from typing import Any

__all__ = ["added_token"]


def added_token(content: str, **flags: bool) -> dict[str, Any]:
    """A token of `added_tokens_decoder`, with the flags that are named."""
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return {"content": content, **dict.fromkeys(names, False), **flags}
