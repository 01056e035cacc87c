"""`TokensPolicy`: chooses the number of replicas by the tokens that wait. Pure.

Ray sends this module to its controller by value, so it imports nothing of this package.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["TokensPolicy"]


class TokensPolicy:
    """A policy for `ray.serve.config.AutoscalingPolicy`.

    The number of replicas is the sum of the shares of their batches in use, and one more for each
    `target_queued_tokens` that wait in a queue. The costs of requests differ by a factor of a
    thousand, so tokens are a better measure than the number of requests.
    """

    def __init__(self, target_queued_tokens: float = 4096) -> None:
        self._target = target_queued_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, before Ray's own limits and delays, and no state.

        context: a `ray.serve.config.AutoscalingContext` with `Replica.record_autoscaling_stats`.
        """
        told = context.aggregated_metrics or {}
        queued, busy = (sum(told.get(name, {}).values()) for name in ("queued_tokens", "busy"))
        wanted = math.ceil(round(busy + queued / self._target, 6))
        return max(1, wanted), {}
