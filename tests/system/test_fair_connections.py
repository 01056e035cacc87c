"""Connections of a sidecar share its engine: one that floods does not starve the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from serving_doubles import serving

from pybatcher import Client

N_FLOOD = 256
PROMPT = "Once upon a time there was a little girl who lived in a house by the sea. " * 4
LONG = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0}
SHORT = {"max_tokens": 5, "ignore_eos": True}


async def test_a_connection_with_hundreds_of_requests_does_not_delay_anothers(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "--n-ctx", "16384", "--n-parallel", "4") as running:
        flood, other = Client(running.socket), Client(running.socket)
        async with other:
            await flood.start()
            tasks = [asyncio.create_task(flood.generate(PROMPT, **LONG)) for _ in range(N_FLOOD)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            answers = [await other.generate(PROMPT, **SHORT), await other.generate(PROMPT, **SHORT)]
            answers.append(await other.generate("Twice upon", namespace="own", **SHORT))
            scores = await other.score(PROMPT, ["yes", "no"])
            n_done = sum(task.done() for task in tasks)
            await flood.close(drain=False)
            await asyncio.wait(tasks)
    assert [len(answer.token_ids) for answer in answers] == [5, 5, 5]
    assert len(scores) == 2
    assert n_done < N_FLOOD / 2
    assert answers[0].usage.cached_tokens > 0, "tenants share the prefix cache"
