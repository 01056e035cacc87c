"""Of a call that has ended nothing is left, however it ended."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest
from link_double import LinkDouble, a_call, a_relay, made, turn

from pybatcher.calls.backpressure import Backpressure
from pybatcher.calls.questions import Detokenize
from pybatcher.calls.reply import Reply
from pybatcher.errors import InvalidRequestError
from pybatcher.sidecar.replay.journal import Entry
from pybatcher.sidecar.replay.remote_service import RemoteService

TOKEN_IDS = [2**31 - 1, 2**31 - 2]


@pytest.mark.parametrize("way", ["finished", "failed", "unsent", "cancelled", "waiting", "asked"])
async def test_its_prompt_needs_no_garbage_collector(way: str) -> None:
    """The server's garbage is collected rarely: a circle of references would keep its prompt."""
    remote = a_relay()
    gc.collect()
    gc.disable()
    try:
        await ended(remote, way)
        assert remote.pending.n_in_flight == 0
        left = gc.get_objects()
        assert [one for one in left if isinstance(one, Entry)] == []
        assert [one for one in left if type(one) is list and one[:1] == [TOKEN_IDS]] == []
    finally:
        gc.enable()


async def ended(remote: RemoteService, way: str) -> None:
    """Have a call that is watched end in some way, long before its deadline."""
    if way == "asked":
        asking = asyncio.ensure_future(remote.ask(Detokenize(token_ids=TOKEN_IDS)))
        await turn()
        made(remote).end(1, error=InvalidRequestError("no"))
        await asyncio.wait({asking})
        assert asking.exception() is not None
        made(remote)  # the double of the first link has kept what it was sent
        return
    reply = Reply(streams=True)
    reply.backpressure = Backpressure()
    ids = await remote.submit(a_call(timeout=3600.0), reply)
    if way != "waiting":
        made(remote).lose(remote.link_lost)  # from now on its deadline is minded here
    if way in ("cancelled", "waiting"):
        if way == "cancelled":
            made(remote)
        remote.cancel(ids)
        await turn()
    elif way == "finished":
        made(remote).finish(1, "")
        reply.result()
    elif way == "failed":
        made(remote).end(1, error=InvalidRequestError("no"))
        with suppress(InvalidRequestError):
            await reply.wait_for_result()
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LinkDouble, "start_call", refuse)
            made(remote)
        assert reply.failed


def refuse(*_: Any) -> int:
    raise InvalidRequestError("no")
