"""`RunningUsage`: the usage of a stream so far, in each of its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...calls.completion import Piece

__all__ = ["RunningUsage"]


class RunningUsage:
    """Adds `usage` to the chunks of a stream (`stream_options.continuous_usage_stats`).

    n_prompt: the tokens of all prompts; None: the client does not want usage. The usage is that of
        all samples together. Only the last chunk has the number of cached tokens.
    """

    def __init__(self, n_prompt: int | None) -> None:
        self._n_prompt = n_prompt
        self._n_drawn = 0

    def told(
        self, chunks: Iterable[dict[str, Any]], pieces: Iterable[Piece]
    ) -> Iterator[dict[str, Any]]:
        """Return the chunks of these pieces, with the usage so far."""
        if self._n_prompt is None:
            yield from chunks
            return
        self._n_drawn += sum(len(piece.token_ids) for piece in pieces)
        usage = {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_drawn,
            "total_tokens": self._n_prompt + self._n_drawn,
        }
        for chunk in chunks:
            yield {**chunk, "usage": usage}
