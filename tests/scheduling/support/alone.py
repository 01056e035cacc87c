"""What a request gets when nobody else is there: the reference for all that run together."""

from __future__ import annotations

from typing import Any

from pybatcher.scheduling import Request, StepEntry, StepPlan
from pybatcher.scheduling.plan import EncodeWork
from pybatcher.serving.engine_executor import StepEngine
from pybatcher.testing import FakeEngine


def tokens_alone(
    request: Request,
    max_length: int,
    engine: StepEngine | None = None,
    *,
    n_wanted: int | None = None,
) -> list[int]:
    """Its tokens, from an engine that has no other sequence, and without a scheduler.

    max_length: of a sequence. engine: None: a fake one. n_wanted: the first so many will do.
    """
    if engine is None:
        engine = FakeEngine(n_ctx=4096, n_parallel=1, block_size=16)
    seq_id = engine.seq_new()
    engine.seq_sampling(
        seq_id,
        request.params,
        seed=request.seed,
        n_prompt=len(request.prompt),
        stop_token_ids=tuple(request.end_token_ids),
    )
    output: list[int] = []
    n_wanted = max_length if n_wanted is None else n_wanted
    tokens = request.prompt
    most = min(request.params.max_tokens, max_length - len(request.prompt), n_wanted)
    images = _images(request, engine)
    while len(output) < most and not request.end_token_ids.intersection(output[-1:]):
        plan = StepPlan((StepEntry(seq_id, tokens, True, images=images),), 0, len(tokens))
        output.append(engine.step(plan).sampled[seq_id][0].token_id)
        tokens, images = (output[-1],), ()
    engine.seq_remove(seq_id)
    return output


def _images(request: Request, engine: StepEngine) -> tuple[tuple[int, Any], ...]:
    """Encode its images, whose tiles have one run each; return their rows and places."""
    if request.images is None:
        return ()
    found = []
    for placed in request.images.tiles:
        work = EncodeWork((placed.tile,), 10**6)
        encoded = engine.step(StepPlan((), 0, 0, encode=work)).encoded
        assert encoded is not None
        found.append((placed.start, encoded[0]))
    return tuple(found)
