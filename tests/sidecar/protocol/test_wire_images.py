"""Images of messages as references, and back, whatever form they were given in."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.sidecar.protocol.wire_images import (
    PackedImage,
    UnknownImageError,
    chunks_of,
    has_images,
    pack_images,
    read_references,
    unpacked,
)

FILE = b"\x89PNG something"
DIGEST = hashlib.sha256(FILE).hexdigest()


def asked(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Hi"}, {"role": "user", "content": list(parts)}]


def image(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image", "image": value, **more}


TEXT = {"type": "text", "text": "a"}


def test_files_of_all_forms_are_the_same_reference(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(FILE)
    uri = "data:image/png;base64," + base64.b64encode(FILE).decode()
    forms: list[Any] = [FILE, bytearray(FILE), memoryview(FILE), path, uri]
    messages = asked(TEXT, *map(image, forms), {"type": "image_url", "image_url": {"url": uri}})
    content, images = pack_images(messages)
    reference = {"type": "image", "sha256": DIGEST}
    assert content == asked(TEXT, *[reference] * 6)
    assert {(one.data, one.digest, one.shape) for one in images} == {(FILE, DIGEST, ())}
    assert messages[1]["content"][1]["image"] is FILE


def test_pixels_keep_their_shape(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    grey, turned = pixels[..., 0], pixels.transpose(1, 0, 2)
    given = [pixels, grey, turned, pil.fromarray(pixels), pil.fromarray(pixels).convert("P")]
    content, images = pack_images(asked(*map(image, given)))
    shapes = [part["shape"] for part in content[1]["content"]]
    assert shapes == [[5, 7, 3], [5, 7], [7, 5, 3], [5, 7, 3], [5, 7, 3]]
    store = {one.digest: one.data for one in images}
    again = unpacked(read_references(content, store))
    values = [part["image"] for part in again[1]["content"]]
    for value, array in zip(values, (pixels, grey, turned, pixels), strict=False):
        assert np.array_equal(value, array)
    assert np.array_equal(values[4], np.asarray(given[4].convert("RGB")))
    file = io.BytesIO()
    pil.fromarray(pixels).save(file, "PNG")
    _, (encoded,) = pack_images(asked(image(file.getvalue())))
    assert encoded.value == file.getvalue()


def test_packed_images_are_not_packed_again() -> None:
    content, images = pack_images(asked(TEXT, image(FILE, detail="low"), image(FILE, detail=None)))
    assert [part.get("detail") for part in content[1]["content"]] == [None, "low", None]
    received = read_references(content, {DIGEST: FILE})
    assert received[1]["content"][1]["detail"] == "low"
    again, same = pack_images(received)
    assert again == content
    assert [
        one is other["image"] for one, other in zip(same, received[1]["content"][1:], strict=True)
    ]
    assert len(images) == len(same) == 2
    assert has_images(received)
    assert has_images(asked(image(FILE)))
    for other in (asked(TEXT), asked(), "text", [1, 2], (), None, [5], [{"content": 5}]):
        assert not has_images(other)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no bytes"),
        ("a.png", "pathlib"),
        (5, "of type int"),
        (None, "it must be"),
        (Path("/nowhere/a.png"), "No such file"),
        (Path("/dev/null"), "no regular file"),
        (np.zeros((2, 2), np.float32), "uint8"),
        (np.zeros(4, np.uint8), "shape"),
    ],
)
def test_values_that_are_no_images_are_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as raised:
        pack_images(asked(TEXT, image(value)))
    assert raised.value.field == "messages[1].content[1].image"


def test_an_image_is_sent_in_parts_that_fit_a_frame() -> None:
    data = bytes(range(256)) * 4096
    packed = PackedImage(data, "d")
    for most in (1024, 2**20, 2**24):
        chunks = list(chunks_of(packed, most))
        assert b"".join(chunk[3] for chunk in chunks) == data
        assert [chunk[2] for chunk in chunks[:2]] == [0, len(chunks[0][3])]
        assert {tuple(chunk[:2]) for chunk in chunks} == {("d", len(data))}
        assert max(len(chunk[3]) for chunk in chunks) <= most // 2


def test_unknown_references_are_told_apart() -> None:
    with pytest.raises(UnknownImageError) as raised:
        read_references(asked(TEXT, {"type": "image", "sha256": "0" * 64}), {DIGEST: FILE})
    assert raised.value.field == "messages[1].content[1].sha256"


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"sha256": None}, "sha256"),
        ({"sha256": 5}, "sha256"),
        ({"sha256": DIGEST.upper()}, "sha256"),
        ({"sha256": DIGEST[:-1]}, "sha256"),
        ({"sha256": [DIGEST]}, "sha256"),
        ({"sha256": "x" * 10**6}, "sha256"),
        ({"sha256": DIGEST, "shape": "x"}, "shape"),
        ({"sha256": DIGEST, "shape": []}, "shape"),
        ({"sha256": DIGEST, "shape": [len(FILE)]}, "shape"),
        ({"sha256": DIGEST, "shape": [1, len(FILE) + 1]}, "shape"),
        ({"sha256": DIGEST, "shape": [-1, -len(FILE)]}, "shape"),
        ({"sha256": DIGEST, "shape": [True, len(FILE)]}, "shape"),
        ({"sha256": DIGEST, "shape": [1.0, len(FILE)]}, "shape"),
        ({"sha256": DIGEST, "shape": [2**40, 2**40, 0]}, "shape"),
        ({"sha256": DIGEST, "shape": [1, 1, 1, len(FILE)]}, "shape"),
    ],
)
def test_odd_references_are_refused_by_name(part: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_references(asked({"type": "image", **part}), {DIGEST: FILE})
    assert not isinstance(raised.value, UnknownImageError)
    assert raised.value.field == f"messages[1].content[0].{field}"
    assert len(str(raised.value)) < 500


def test_other_content_is_left_as_it_is() -> None:
    odd: list[Any] = ["text", [1, 2], [{"role": "user"}], [5, None], asked(5, None, {"type": 5})]
    odd.append(asked({"type": "image"}, {"type": "text", "sha256": 5}))
    for content in odd:
        assert read_references(content, {}) == content
        assert unpacked(content) == content
