"""From the images of a chat to a prompt with their ids and places."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pybatcher.errors import InvalidRequestError, ModelFormatError, PybatcherError
from pybatcher.images import DecodedImage, ImageLimits, PreparedImage, Tile
from pybatcher.scheduling import FIRST_IMAGE_ID, PromptImages
from pybatcher.serving.image_reader import ImageReader
from pybatcher.testing import byte_tokenizer
from pybatcher.testing.fake_images import FakeImageProcessor
from pybatcher.text.chat_images import ChatImage

FIRST = FIRST_IMAGE_ID
SPECIAL = ("<pic>", "<|image|>", "<row>")
TOKENIZER = byte_tokenizer(*SPECIAL)
PIC, IMAGE, ROW = (TOKENIZER.added_token_ids(SPECIAL)[text] for text in SPECIAL)


class Rows(FakeImageProcessor):
    """Writes a token after each row of an image, and its own text for an image."""

    placeholder = "<pic>"

    def __init__(self) -> None:
        self.prepared = 0
        self.asked: list[Any] = []

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        self.prepared += 1
        made = super().prepare(image, detail)
        _, rows, columns = made.tiles[0].grid
        return PreparedImage(made.tiles, ("<|image|>" * columns + "<row>") * rows)

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> Any:
        self.asked.append((tuple(tokens), [start for start, _ in runs]))
        return np.zeros((3, len(tokens)), np.int32)


def picture(value: int, height: int = 64, width: int = 96) -> Any:
    return np.full((height, width, 3), value, np.uint8)


def png(value: int) -> bytes:
    file = BytesIO()
    Image.fromarray(picture(value)).save(file, "PNG")
    return file.getvalue()


def reader(processor: Any = None, **limits: int) -> ImageReader:
    made = processor or Rows()
    return ImageReader(made, ImageLimits(**limits), IMAGE, lambda: None)


def read(
    made: ImageReader, text: str, *values: Any, says: str = "", most: int = 1000
) -> tuple[tuple[int, ...], PromptImages]:
    """Read a chat. text: what the template writes. says: a text of the user after it."""

    def check(n_tokens: int) -> None:
        if n_tokens > most:
            raise InvalidRequestError("too many")

    def render(stand_ins: Any) -> str:
        said = says
        for one, other in stand_ins.items():
            said = said.replace(one, other)
        return text + said

    images = [ChatImage(f"image {i}", "auto", value) for i, value in enumerate(values)]

    def encode(text: str) -> tuple[int, ...]:
        return tuple(TOKENIZER.encode(text, add_special_tokens=False))

    return made.read(images, render, encode, check, lambda: True)


def test_an_image_takes_the_place_that_the_template_gives_it() -> None:
    made = reader(FakeImageProcessor())
    prompt, images = read(made, "ab<|image|>c<|image|>", picture(1), picture(2))
    assert prompt[2:8] == tuple(range(FIRST, FIRST + 6))
    assert prompt[9:] == tuple(range(FIRST + 6, FIRST + 12))
    assert [(one.start, one.n_tokens, one.first_id, one.offset) for one in images.tiles] == [
        (2, 6, FIRST, 0),
        (9, 6, FIRST + 6, 0),
    ]
    assert images.plain(prompt)[2:8] == (IMAGE,) * 6
    assert images.positions is None


def test_a_tile_may_have_several_runs() -> None:
    processor = Rows()
    prompt, images = read(reader(processor), "a<pic>b", picture(1))
    assert prompt[1:9] == (FIRST, FIRST + 1, FIRST + 2, ROW, FIRST + 3, FIRST + 4, FIRST + 5, ROW)
    assert [(one.start, one.n_tokens, one.first_id, one.offset) for one in images.tiles] == [
        (1, 3, FIRST, 0),
        (5, 3, FIRST + 3, 3),
    ]
    assert {one.tile_id for one in images.tiles} == {FIRST}
    assert processor.asked == [(images.plain(prompt), [1])]
    assert images.positions is not None
    assert images.positions.shape == (3, len(prompt))


def test_equal_images_have_equal_ids() -> None:
    made = reader(FakeImageProcessor())
    text = "<|image|><|image|><|image|>"
    once, _ = read(made, text, picture(1), picture(2), picture(1))
    again, _ = read(made, text, picture(2), picture(1), picture(3))
    assert once[:6] == once[12:] == again[6:12]
    assert once[6:12] == again[:6]
    assert not set(again[12:]) & set(once)


@pytest.mark.parametrize("says", ["<pic>", "<|image|>", "<|image|><pic> <pic><|image|>"])
def test_a_text_of_the_user_is_no_image(says: str) -> None:
    prompt, images = read(reader(), "<pic>", picture(1, 32, 64), says=says)
    assert [one.start for one in images.tiles] == [0]
    assert prompt[:3] == (FIRST, FIRST + 1, ROW)
    assert prompt[3:] == tuple(TOKENIZER.encode(says, add_special_tokens=False))


@pytest.mark.parametrize(("text", "n"), [("no image", 0), ("<pic><pic>", 2)])
def test_a_template_that_shows_another_number_of_images(text: str, n: int) -> None:
    processor = Rows()
    with pytest.raises(InvalidRequestError, match=f"1 images, of which the chat template .* {n};"):
        read(reader(processor), text, picture(1))
    assert processor.prepared == 0


def test_texts_that_become_image_tokens_only_in_the_tokenizer() -> None:
    made = reader(FakeImageProcessor())
    images = [ChatImage("image", "auto", picture(1))]
    with pytest.raises(InvalidRequestError, match="makes 7 image tokens in the place of 6"):
        made.read(
            images,
            lambda _: "<|image|>",
            lambda _: (IMAGE,) * 7,
            lambda _: None,
            lambda: True,
        )


def test_an_image_that_is_sent_again_is_prepared_once() -> None:
    processor = Rows()
    made = reader(processor)
    first, one = read(made, "<pic>", png(1))
    second, other = read(made, "<pic>", bytearray(png(1)))
    assert (first, processor.prepared) == (second, 1)
    assert one.tiles[0].tile is other.tiles[0].tile
    read(made, "<pic>", png(2))
    assert processor.prepared == 2


def test_the_detail_of_an_image_is_a_part_of_it() -> None:
    made = reader(FakeImageProcessor())

    def n_tokens(detail: str) -> int:
        images = [ChatImage("image", detail, png(1))]
        encode = partial(TOKENIZER.encode, add_special_tokens=False)
        return made.read(images, lambda _: "<|image|>", encode, lambda _: None, lambda: True)[
            1
        ].n_tokens

    assert [n_tokens(detail) for detail in ("auto", "low", "auto")] == [6, 1, 6]


def test_prepared_images_are_kept_within_a_bound() -> None:
    processor = Rows()
    made = ImageReader(processor, ImageLimits(), IMAGE, lambda: None, kept_bytes=200)
    for value in (1, 2, 3, 3, 1):
        read(made, "<pic>", png(value))
    assert processor.prepared == 4
    assert made._n_kept_bytes <= 200


def test_bounds_hold_before_anything_is_decoded() -> None:
    processor = Rows()
    made = reader(processor, max_images=2, max_pixels=100)
    images = [ChatImage(f"image {i}", "auto", None) for i in range(3)]
    made.check(images[:2])
    with pytest.raises(
        InvalidRequestError, match=r"have 3 images; .* at most 2 \(max_images\)"
    ) as e:
        made.check(images)
    assert e.value.field == "image 2"
    with pytest.raises(InvalidRequestError, match="max_image_pixels"):
        read(made, "<pic>", picture(1))
    with pytest.raises(InvalidRequestError, match="too many"):
        read(reader(processor), "<pic><pic><pic>", *map(picture, (1, 2, 3)), most=11)
    assert processor.prepared == 2, "the third image is not prepared"


def test_a_call_that_was_given_up_is_not_read_on() -> None:
    processor = Rows()
    images = [ChatImage("image", "auto", picture(1))]
    with pytest.raises(InvalidRequestError, match="given up"):
        reader(processor).read(
            images, lambda _: "<pic>", lambda _: (), lambda _: None, lambda: False
        )
    assert processor.prepared == 0


def test_a_processor_that_fails_harms_its_call_only() -> None:
    class Broken(Rows):
        def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
            raise ZeroDivisionError("no")

    class Lying(FakeImageProcessor):
        def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
            made = super().prepare(image, detail)
            return PreparedImage(made.tiles * 2, made.text)

    with pytest.raises(InvalidRequestError, match=r"image 0 cannot be prepared .*: no") as error:
        read(reader(Broken()), "<pic>", picture(1))
    assert error.value.field == "image 0"
    with pytest.raises(PybatcherError):
        read(reader(Lying()), "<|image|>", picture(1))


def test_threads_share_it() -> None:
    made = reader(FakeImageProcessor())
    found: list[Any] = []

    def work(value: int) -> None:
        found.append(read(made, "<|image|>", png(value))[0])

    threads = [threading.Thread(target=work, args=(i % 3,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert len(set(found)) == 3


def test_a_tile_without_tokens_is_a_fault_of_the_processor() -> None:
    with pytest.raises(ModelFormatError, match="a tile without tokens"):
        reader()._placed((IMAGE,), [True], [])
