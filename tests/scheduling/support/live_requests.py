"""Requests for tests of what the scheduler is made of."""

from __future__ import annotations

from pybatcher.params import SamplingParams
from pybatcher.scheduling import Request
from pybatcher.scheduling.request import LiveRequest


def live_request(
    request_id: int,
    n_tokens: int = 1,
    *,
    submitted: float = 0.0,
    seniority: float | None = None,
    namespace: str = "",
    tenant: str = "",
    priority: int = 0,
    deadline: float | None = None,
    max_tokens: int = 1,
) -> LiveRequest:
    """One that has just been submitted."""
    request = Request(
        request_id=request_id,
        prompt=(0,) * n_tokens,
        params=SamplingParams(max_tokens=max_tokens),
        namespace=namespace,
        tenant=tenant,
        priority=priority,
        deadline=deadline,
    )
    return LiveRequest(
        request=request,
        submitted=submitted,
        seniority=submitted if seniority is None else seniority,
        number=request_id,
        max_output=max_tokens,
    )
