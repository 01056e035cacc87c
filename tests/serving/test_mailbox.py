"""Messages in their order; a reader that sleeps until there is one."""

from __future__ import annotations

import asyncio
import threading

from pybatcher.serving.mailbox import Cancel, Mailbox


async def test_order_and_waking() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = asyncio.create_task(mailbox.wait(None))
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(Cancel(1))
    mailbox.put(Cancel(2))
    await reader
    await mailbox.wait(None)
    assert mailbox.take_all() == [Cancel(1), Cancel(2)]
    assert mailbox.take_all() == []


async def test_waiting_ends_with_the_time() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    async with asyncio.timeout(20):
        await mailbox.wait(0.001)
    assert mailbox.take_all() == []


async def test_from_another_thread() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    thread = threading.Thread(target=mailbox.put_threadsafe, args=(Cancel(1),))
    thread.start()
    async with asyncio.timeout(20):
        await mailbox.wait(None)
    thread.join()
    assert mailbox.take_all() == [Cancel(1)]


def test_a_loop_that_is_closed_is_nobodys_trouble() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.put_threadsafe(Cancel(1))
    assert mailbox.take_all() == []
