"""The bytes of images in prompts are counted, and chats wait for room."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
from batcher_helpers import until

from pybatcher.scheduling import PlacedTile, PromptImages
from pybatcher.serving.image_room import ImageRoom


def tile(name: str, n_bytes: int) -> Any:
    none = np.empty(0, np.int32)
    pixels = np.empty(n_bytes, np.uint8)
    return SimpleNamespace(
        digest=name.encode(), pixels=pixels, coordinates=none, table_index=none, table_weight=none
    )


def images(*tiles: Any) -> PromptImages:
    return PromptImages(tuple(PlacedTile(i, 1, i, one) for i, one in enumerate(tiles)), None, 0)


async def test_equal_tiles_count_once_and_as_long_as_a_prompt_has_them() -> None:
    room = ImageRoom()
    one, other = images(tile("a", 100), tile("b", 10), tile("a", 100)), images(tile("a", 100))
    room.hold(one)
    room.hold(other)
    assert room.n_bytes == 110
    del one
    gc.collect()
    await until(lambda: room.n_bytes == 100)
    thread = threading.Thread(target=lambda last: None, args=[other])
    del other
    thread.start()
    thread.join()
    del thread
    gc.collect()
    await until(lambda: room.n_bytes == 0)


async def test_chats_wait_until_there_is_room() -> None:
    room = ImageRoom(100)
    held = images(tile("a", 101))
    room.hold(held)
    inside: list[int] = []

    async def enter(i: int) -> None:
        async with room.entered("tenant"):
            inside.append(i)

    calls = [asyncio.ensure_future(enter(i)) for i in range(5)]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.gather(calls[0], return_exceptions=True)
    assert inside == []
    del held
    gc.collect()
    await asyncio.gather(*calls[1:])
    assert inside == [1, 2, 3, 4]


async def test_few_chats_read_their_images_at_a_time() -> None:
    room = ImageRoom()
    inside: list[str] = []
    most: list[int] = []
    goes_on = asyncio.Event()

    async def enter(tenant: str) -> None:
        async with room.entered(tenant):
            inside.append(tenant)
            most.append(len(inside))
            await goes_on.wait()
            inside.remove(tenant)

    calls = [asyncio.ensure_future(enter(tenant)) for tenant in "aaaaab"]
    await until(lambda: sorted(inside) == ["a", "a", "b"])
    goes_on.set()
    await asyncio.gather(*calls)
    assert max(most) <= 4


async def test_images_that_outlive_the_loop_are_nobodys_error() -> None:
    made: list[Any] = []

    def other_loop() -> None:
        async def hold() -> None:
            room = ImageRoom()
            made.append(images(tile("a", 1)))
            room.hold(made[0])

        asyncio.run(hold())

    await asyncio.to_thread(other_loop)
    made.clear()
    gc.collect()
