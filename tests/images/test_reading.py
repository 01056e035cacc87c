from __future__ import annotations

import io
import os
import re
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import MODES, WHERE, WIDE_MODES, encoded, noise, picture, png_chunk, png_of
from PIL import Image, ImageOps

from pybatcher.errors import InvalidRequestError
from pybatcher.images import ImageLimits, read_image

LIMITS = ImageLimits()


def pixels_of(value: Any, limits: ImageLimits = LIMITS) -> np.ndarray:
    return read_image(value, WHERE, limits).pixels


def refused(value: Any, limits: ImageLimits = LIMITS) -> str:
    """Return the message of the error for a value, which names the field."""
    with pytest.raises(InvalidRequestError) as caught:
        read_image(value, WHERE, limits)
    assert caught.value.field == WHERE
    return str(caught.value)


def oracle(image: Any) -> np.ndarray:
    transforms = pytest.importorskip("transformers.image_transforms")
    return np.asarray(transforms.convert_to_rgb(image, return_numpy=True))


@pytest.mark.parametrize("mode", MODES + WIDE_MODES)
def test_every_mode_becomes_rgb_as_in_transformers(mode: str) -> None:
    image = picture(37, 53, mode)
    assert np.array_equal(pixels_of(image), oracle(image))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_of_every_mode_is_read_as_pillow_opens_it(mode: str) -> None:
    data = encoded(picture(37, 53, mode))
    assert np.array_equal(pixels_of(data), oracle(Image.open(io.BytesIO(data))))


def test_a_palette_with_transparent_colours_is_composited() -> None:
    image = picture(40, 40, "P")
    for transparency in (image.getpixel((0, 0)), bytes(range(256))):
        data = encoded(image, transparency=transparency)
        opened = Image.open(io.BytesIO(data))
        expected = oracle(opened)
        assert np.array_equal(pixels_of(data), expected)
        assert np.array_equal(pixels_of(opened), expected)
        assert not np.array_equal(expected, np.asarray(image.convert("RGB")))


def test_an_rgb_image_with_a_transparent_colour_is_composited() -> None:
    pixels = noise(20, 20)
    pixels[3:9] = (1, 2, 3)
    data = encoded(Image.fromarray(pixels), transparency=(1, 2, 3))
    assert np.array_equal(pixels_of(data), oracle(Image.open(io.BytesIO(data))))
    assert (pixels_of(data)[3:9] == 255).all()


@pytest.mark.parametrize("shape", [(21, 34), (21, 34, 1), (21, 34, 3), (21, 34, 4)])
def test_arrays_become_rgb_as_in_transformers(shape: tuple[int, ...]) -> None:
    array = noise(21, 34, 4)[..., : shape[2] if len(shape) == 3 else 1].reshape(shape)
    expected = oracle(array if array.ndim == 3 else array[..., None])
    assert np.array_equal(pixels_of(array), expected)
    assert np.array_equal(pixels_of(array[::-1]), expected[::-1])


def test_large_images_with_transparency_are_composited_in_strips() -> None:
    image = picture(1100, 1300, "RGBA")
    assert np.array_equal(pixels_of(image), oracle(image))
    array = noise(1100, 1300, 4)
    assert np.array_equal(pixels_of(array), oracle(array))


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("PNG", "RGB", {}),
        ("JPEG", "RGB", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("WebP", "RGB", {}),
        ("WebP", "RGB", {"lossless": True}),
        ("WebP", "RGBA", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("BMP", "1", {}),
    ],
    ids=str,
)
def test_formats_are_read_as_pillow_opens_them(
    kind: str, mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    data = encoded(picture(61, 47, mode), kind, **options)
    expected = oracle(Image.open(io.BytesIO(data)))
    assert np.array_equal(pixels_of(data), expected)
    assert np.array_equal(pixels_of(bytearray(data)), expected)
    assert np.array_equal(pixels_of(memoryview(data)), expected)
    path = tmp_path / "image"
    path.write_bytes(data)
    assert np.array_equal(pixels_of(path), expected)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WebP"])
def test_the_first_frame_of_an_animation_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (20, 30), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WebP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert getattr(Image.open(io.BytesIO(data)), "n_frames", 1) == 3
    assert (pixels_of(data) == (255, 0, 0)).all()


def test_the_first_picture_of_a_multi_picture_jpeg_is_read() -> None:
    first, second = picture(30, 40), picture(20, 20)
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert np.array_equal(pixels_of(data), oracle(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_file_is_turned_as_its_exif_data_say(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(30, 50), kind, exif=exif)
    expected = oracle(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.array_equal(pixels_of(data), expected)
    assert pixels_of(data).shape == ((50, 30, 3) if orientation in range(5, 9) else (30, 50, 3))


def test_a_pillow_image_is_taken_as_it_is() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = Image.open(io.BytesIO(encoded(picture(30, 50), exif=exif)))
    assert np.array_equal(pixels_of(opened), noise(30, 50, 4)[..., :3])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_are_ignored() -> None:
    data = encoded(picture(30, 50), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert pixels_of(data).shape == (30, 50, 3)


def test_the_image_of_the_caller_is_not_kept() -> None:
    image, array = picture(9, 9), noise(9, 9)
    kept, kept_array = read_image(image, WHERE, LIMITS), read_image(array, WHERE, LIMITS)
    image.paste((0, 0, 0), (0, 0, 9, 9))
    array[:] = 0
    assert kept.pixels.any()
    assert kept_array.pixels.any()


def test_images_are_read_on_several_threads_at_once() -> None:
    files = [encoded(picture(90, 70), kind) for kind in ("PNG", "JPEG", "WebP", "GIF", "BMP")] * 8
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(pixels_of, files))
    for data, pixels in zip(files, found, strict=True):
        assert np.array_equal(pixels, oracle(Image.open(io.BytesIO(data))))


def test_more_pixels_than_the_limit_are_refused_by_the_header() -> None:
    limits = ImageLimits(max_pixels=100)
    for kind in ("PNG", "JPEG", "WebP", "GIF", "BMP"):
        for width, height in ((10, 10), (1, 100)):
            assert pixels_of(encoded(picture(height, width), kind), limits).size == 300
        message = refused(encoded(picture(11, 10), kind)[:-40], limits)
        assert "has 10 x 11 pixels (width x height), which is 110 pixels" in message
        assert "at most 100 (max_image_pixels): scale it down" in message
    for value in (picture(11, 10), noise(11, 10)):
        assert "at most 100 (max_image_pixels)" in refused(value, limits)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(png_of(40_000, 40_000), id="PNG"),
        pytest.param(b"GIF89a\x40\x9c\x40\x9c\x00\x00\x00;", id="GIF"),
        pytest.param(b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x3f\x9c\0\x3f\x9c\0", id="WebP"),
        pytest.param(np.broadcast_to(np.uint8(7), (40_000, 40_000)), id="array"),
    ],
)
def test_a_small_value_with_many_pixels_is_refused(value: Any) -> None:
    message = refused(value)
    assert "has 40000 x 40000 pixels (width x height), which is 1600000000 pixels" in message


def test_a_side_has_a_limit_of_its_own() -> None:
    limits = ImageLimits(max_pixels=2**28)
    assert "each side must be at most 65536" in refused(png_of(65_537, 1), limits)
    assert pixels_of(Image.new("L", (65_536, 1)), limits).shape == (1, 65_536, 3)


def test_the_limit_of_pillow_is_neither_used_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in ("PNG", "JPEG", "GIF", "BMP"):
        assert pixels_of(encoded(picture(30, 50), kind)).shape == (30, 50, 3)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_bytes_have_a_limit(tmp_path: Path) -> None:
    data = encoded(picture(9, 9))
    path = tmp_path / "image.png"
    path.write_bytes(data)
    exact, less = ImageLimits(max_bytes=len(data)), ImageLimits(max_bytes=len(data) - 1)
    for value in (data, bytearray(data), memoryview(data), path):
        assert pixels_of(value, exact).shape == (9, 9, 3)
        message = refused(value, less)
        assert f"has {len(data)} bytes; it must have at most {len(data) - 1}" in message
        assert "(max_image_bytes)" in message


def test_a_truncated_file_is_refused_wherever_it_ends() -> None:
    for kind in ("PNG", "JPEG", "WebP", "GIF", "BMP"):
        data = encoded(picture(40, 40), kind)
        for length in [1, 2, 12, 20, 26, 30, 60, len(data) // 2]:
            message = refused(data[:length])
            assert "save it again as PNG or JPEG" in message, (kind, length)


def test_damaged_bytes_are_refused_or_read_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    for kind in ("PNG", "JPEG", "WebP", "GIF", "BMP"):
        data = encoded(picture(40, 40), kind)
        for _ in range(60):
            damaged = bytearray(data)
            for at in rng.integers(0, len(data), 4):
                damaged[at] = rng.integers(256)
            with suppress(InvalidRequestError):
                assert pixels_of(damaged, ImageLimits(max_pixels=10_000)).shape[2] == 3


def zip_bomb(name: bytes, prefix: bytes) -> bytes:
    return png_chunk(name, prefix + zlib.compress(bytes(2**26)))


@pytest.mark.parametrize(
    "chunk",
    [zip_bomb(b"iCCP", b"icc\0\0"), zip_bomb(b"zTXt", b"a\0\0"), zip_bomb(b"iTXt", b"a\0\1\0\0\0")],
    ids=["profile", "text", "international text"],
)
def test_metadata_that_unpack_to_many_bytes_are_refused(chunk: bytes) -> None:
    pixels = b"\0" + bytes(3 * 8)
    assert pixels_of(png_of(8, 1, pixels=pixels)).shape == (1, 8, 3)
    assert "cannot be decoded as PNG" in refused(png_of(8, 1, chunk, pixels=pixels))


def test_a_jpeg_with_very_many_scans_is_refused() -> None:
    data = encoded(picture(2000, 2000), "JPEG", progressive=True)
    assert pixels_of(data).shape == (2000, 2000, 3)
    message = refused(data[:-2] + b"\xff\xda\x00\x02" * 300 + data[-2:])
    assert "is a JPEG of 2000 x 2000 pixels with 31" in message
    assert "scans; it must have at most 268: save it again" in message


class Hostile:
    """An object whose every method raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class HostileImage(Image.Image):
    @property
    def width(self) -> int:
        raise RuntimeError("no width")


def closed_image() -> Image.Image:
    image = Image.open(io.BytesIO(encoded(picture(9, 9))))
    image.close()
    return image


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "is of type NoneType; it must be a PIL.Image"),
    "number": (lambda: 5, "is of type int; it must be"),
    "list": (lambda: [[1]], "is of type list; it must be"),
    "path as a text": (lambda: "cat.png", "is 'cat.png'; .* pass a path as pathlib.Path"),
    "object": (Hostile, "which raises RuntimeError when it is read; it must be a PIL.Image"),
    "class": (lambda: Image.Image, "is of type type; it must be"),
    "no bytes": (lambda: b"", "has no bytes"),
    "text": (lambda: b"hello", "begins with b'hello' and is no PNG, JPEG, WebP, GIF or BMP file"),
    "SVG": (lambda: b"<svg/>", r"\(SVG or another text\)"),
    "PDF": (lambda: b"%PDF-1.7", r"\(PDF\)"),
    "TIFF": (lambda: encoded(picture(9, 9), "TIFF"), r"\(TIFF\) and is no PNG"),
    "AVIF": (lambda: b"\0\0\0\x20ftypavif", r"\(HEIC or AVIF\)"),
    "floats": (lambda: np.zeros((4, 4, 3)), r"array of float64; .*\(array \* 255\)"),
    "int64": (lambda: np.zeros((4, 4, 3), int), "array of int64; it must be one of uint8: scale"),
    "flags": (lambda: np.zeros((4, 4), bool), "array of bool; it must be one of uint8"),
    "objects": (lambda: np.array([[Hostile]]), "array of object"),
    "one axis": (lambda: np.zeros(4, np.uint8), r"array of shape \(4,\); it must be"),
    "four axes": (lambda: np.zeros((1, 4, 4, 3), np.uint8), r"array of shape \(1, 4, 4, 3\)"),
    "channels first": (lambda: np.zeros((3, 8, 9), np.uint8), r"numpy.moveaxis\(array, 0, -1\)"),
    "two channels": (lambda: np.zeros((8, 9, 2), np.uint8), r"array of shape \(8, 9, 2\)"),
    "no rows": (lambda: np.zeros((0, 9, 3), np.uint8), "has 9 x 0 pixels .* must be at least 1"),
    "no columns": (lambda: Image.new("RGB", (0, 3)), "has 0 x 3 pixels .* must be at least 1"),
    "a header without pixels": (lambda: png_of(0, 0), "cannot be decoded as PNG"),
    "floats of Pillow": (lambda: Image.new("F", (2, 2)), r'has the mode F .*convert\("L"\)'),
    "premultiplied": (lambda: Image.new("La", (2, 2)), "cannot be read: .*conversion from La"),
    "closed": (closed_image, "cannot be read"),
    "hostile image": (HostileImage, "which raises RuntimeError when it is read"),
    "no file": (lambda: Path("/nonexistent/cat.png"), "cannot be read: No such file"),
    "a null in a path": (lambda: Path("a\0b"), "cannot be read: .*null"),
    "folder": (lambda: Path("/"), "cannot be read: Is a directory"),
    "device": (lambda: Path("/dev/zero"), "which is no regular file"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_are_refused_with_the_way_out(name: str) -> None:
    make, expected = ODD[name]
    message = refused(make())
    assert message.startswith(f"{WHERE} ")
    assert re.search(expected, message), message


def test_reading_a_fifo_does_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert "which is no regular file" in refused(path)


def test_a_tensor_is_refused_with_the_way_out() -> None:
    torch = pytest.importorskip("torch")
    assert "tensor.numpy()" in refused(torch.zeros(2, 2, 3, dtype=torch.uint8))


def test_without_pillow_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    message = refused(noise(9, 9))
    assert "images need Pillow (" in message
    assert message.endswith("to install it: pip install 'pybatcher-engine[images]'")
