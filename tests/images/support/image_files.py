"""Images and image files for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WHERE = "messages[0].content[1].image"

MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"]
WIDE_MODES = ["I", "I;16"]
SIZES = [(64, 64), (100, 75), (33, 640), (640, 33), (7, 5), (1, 90), (150, 1), (301, 299)]
"""Heights and widths: square, odd, wide, tall and tiny."""


def noise(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    """Return random pixels that depend on the size only."""
    rng = np.random.default_rng([height, width, channels])
    return rng.integers(0, 256, (height, width, channels), np.uint8)


def picture(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Return a random image of a mode, with transparent pixels if the mode can have them."""
    if mode in WIDE_MODES:
        values = noise(height, width)[..., 0].astype(np.uint16) * 3
        return Image.fromarray(values if mode == "I;16" else values.astype(np.int32))
    rgba = Image.fromarray(noise(height, width, 4), "RGBA")
    if mode == "PA":
        return rgba.convert("LA").convert("PA")
    return rgba.convert(mode if mode in ("LA", "RGBA") else "RGB").convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the file of an image."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png_of(width: int, height: int, *chunks: bytes, pixels: bytes = b"") -> bytes:
    """Return a PNG file whose header states a size, whatever its pixels are."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = png_chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + png_chunk(b"IEND", b"")
