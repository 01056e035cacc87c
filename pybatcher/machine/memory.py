"""`MemoryNeed`: the memory that an engine takes, beside the memory that is free."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import EngineError

__all__ = ["MemoryNeed", "size_text"]

_IS_REPORTED = sys.platform != "darwin"
"""True if the system reports its available memory. On macOS half of the memory is assumed."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that an engine takes on its device, and bytes that are free.

    weights: packed weights. kv: keys and values of `n_ctx` tokens. buffers: an estimate of
        activations, logits and rope tables. n_ctx: tokens of KV.
    available: memory that can be allocated without swapping, at most what the limits of the
        process's cgroups leave.
    """

    weights: int
    kv: int
    buffers: int
    available: int
    n_ctx: int

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> MemoryNeed:
        """Make it from what `Engine.plan` returns."""
        return cls(
            weights=plan["weight_bytes"],
            kv=plan["kv_bytes"],
            buffers=plan["buffer_bytes"],
            available=plan["available_bytes"],
            n_ctx=plan["n_ctx"],
        )

    @property
    def total(self) -> int:
        """The sum of weights, KV and buffers."""
        return self.weights + self.kv + self.buffers

    @property
    def fits(self) -> bool:
        """True if the engine takes no more than the available memory."""
        return self.total <= self.available

    @property
    def most_tokens(self) -> int:
        """The tokens of KV that fit beside weights and buffers, up to `n_ctx`, in steps of 256."""
        left = self.available - self.weights - self.buffers
        if left <= 0 or self.kv == 0:
            return 0
        return min(self.n_ctx, left * self.n_ctx // self.kv) // 256 * 256

    def remedy(self) -> str:
        """Return the options with which the engine takes less memory."""
        if self.most_tokens:
            return f"give an n_ctx of at most {self.most_tokens}, or kv_dtype='int8'"
        return "take a smaller dtype ('int8', 'q4_k_m' or 'int4') or a smaller model"

    def check(self, origin: str) -> None:
        """Raise EngineError if the engine does not fit.

        origin: names the model in the message. Does nothing on systems that do not report their
        available memory.
        """
        if self.fits or not _IS_REPORTED:
            return
        raise EngineError(
            f"{origin}: takes {size_text(self.total)} of memory (weights "
            f"{size_text(self.weights)}, KV of n_ctx={self.n_ctx} {size_text(self.kv)}, buffers "
            f"{size_text(self.buffers)}), and {size_text(self.available)} are free; "
            f"{self.remedy()}, or overcommit=True to open it nevertheless",
            field="n_ctx" if self.most_tokens else "model",
        )


def size_text(n_bytes: int) -> str:
    """Return a number of bytes in MiB, from 1 GiB on in GiB."""
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:,.1f} GiB"
    return f"{n_bytes / 2**20:,.1f} MiB"
