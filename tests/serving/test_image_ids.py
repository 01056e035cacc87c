"""Ids of images: equal for equal tiles, never used twice, and begun again when they are used up."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from pybatcher.errors import QueueFullError
from pybatcher.scheduling import FIRST_IMAGE_ID, PlacedTile, PromptImages
from pybatcher.serving.image_ids import ImageIds


def tile(name: str, n_tokens: int) -> Any:
    return SimpleNamespace(digest=name.encode(), n_tokens=n_tokens)


def held(ids: ImageIds, first: int, n_tokens: int) -> PromptImages:
    return ids.hold(PromptImages((PlacedTile(0, n_tokens, first, None),), None, 0))


def never() -> None:
    raise AssertionError("the ids are not used up")


def test_equal_tiles_have_equal_ids_and_others_have_others() -> None:
    ids = ImageIds(never)
    first = FIRST_IMAGE_ID
    assert ids.first_ids([tile("a", 3), tile("b", 2), tile("a", 3)]) == [first, first + 3, first]
    assert ids.first_ids([tile("c", 1), tile("b", 2)]) == [first + 5, first + 3]


def test_a_tile_that_was_forgotten_gets_new_ids() -> None:
    ids = ImageIds(never, most_known=2)
    first = FIRST_IMAGE_ID
    ids.first_ids([tile("a", 3), tile("b", 2)])
    assert ids.first_ids([tile("a", 3), tile("c", 1)]) == [first, first + 5]
    assert ids.first_ids([tile("a", 3), tile("b", 2)]) == [first, first + 6]


def test_the_numbering_begins_again_without_ids_in_use() -> None:
    told: list[int] = []
    ids = ImageIds(lambda: told.append(1), most_known=2, first=100, last=118)
    prompt = held(ids, ids.first_ids([tile("in a prompt", 4)])[0], 4)  # 100 to 103
    held(ids, ids.first_ids([tile("gone", 4)])[0], 4)  # 104 to 107
    gc.collect()
    assert ids.first_ids([tile("known", 4), tile("old", 4)]) == [108, 112]
    assert not told
    assert ids.first_ids([tile("new", 4)]) == [104]
    assert told == [1]
    assert ids.first_ids([tile("old", 4), tile("newer", 3)]) == [112, 116]
    assert prompt.tiles[0].first_id == 100


def test_requests_that_use_all_ids_keep_others_out() -> None:
    ids = ImageIds(lambda: None, most_known=1, first=0, last=7)
    (first,) = ids.first_ids([tile("a", 8)])
    prompt = held(ids, first, 8)
    with pytest.raises(QueueFullError, match="used up by requests"):
        ids.first_ids([tile("b", 1)])
    assert prompt.n_tokens == 8
