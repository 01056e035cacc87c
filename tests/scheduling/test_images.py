"""The images of a prompt, and the prompt in tokens of the vocabulary."""

from __future__ import annotations

from pybatcher.scheduling import FIRST_IMAGE_ID, PlacedTile, PromptImages, Request


def test_the_plain_prompt_has_the_image_token_of_the_model() -> None:
    first = FIRST_IMAGE_ID
    prompt = (1, first, first + 1, 2, first + 7, 3)
    tiles = (PlacedTile(1, 2, first, None), PlacedTile(4, 1, first + 7, None))
    request = Request(request_id=1, prompt=prompt, images=PromptImages(tiles, None, 9))
    assert request.images is not None
    assert request.images.plain(prompt) == (1, 9, 9, 2, 9, 3)
    assert request.n_image_tokens == 3
    assert Request(request_id=1, prompt=(1, 2)).n_image_tokens == 0


def test_all_runs_of_a_tile_name_its_first_token() -> None:
    first = FIRST_IMAGE_ID
    runs = [PlacedTile(1, 2, first, None), PlacedTile(4, 2, first + 2, None, 2)]
    assert [run.tile_id for run in runs] == [first, first]
