"""Images of chats on the wire: their bytes once for a connection, and references in messages.

    notification image [sha256, size, offset, bytes]
    part of a message {"type": "image", "sha256", "shape"?, "detail"?}

An image may come in several notifications, each with the next bytes, which begin at `offset`.
`sha256` is the digest of all bytes as 64 hexadecimal digits, `size` their number. They are an image
file; with `shape`, the pixels of a uint8 array in the order of C.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ...errors import InvalidRequestError
from ...text.chat_images import IMAGE_PART, ChatImage, take_images
from .wire_fields import ASKED

__all__ = [
    "PackedImage",
    "UnknownImageError",
    "check_digest",
    "chunks_of",
    "has_images",
    "pack_images",
    "read_references",
    "unpacked",
]

_CHUNK = 2**18
_DIGEST = re.compile("[0-9a-f]{64}")
_SHAPE = "[height, width] or [height, width, channels], with as many values as the image has bytes"


class UnknownImageError(InvalidRequestError):
    """A message refers to an image that the other end does not have; send it again."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedImage:
    """An image as it is sent.

    data: an image file, or pixels. digest: sha256 of the data, in hexadecimal.
    shape: of the array of the pixels; () for a file.
    """

    data: bytes
    digest: str
    shape: tuple[int, ...] = ()

    @property
    def value(self) -> Any:
        """The image as the part of a message has it: bytes, or a uint8 array."""
        if not self.shape:
            return self.data
        import numpy as np

        return np.frombuffer(self.data, np.uint8).reshape(self.shape)


def has_images(content: object) -> bool:
    """Return whether messages have images, of whatever form. content: of any type."""
    return isinstance(content, (list, tuple)) and bool(take_images(content)[1])


def pack_images(messages: Any) -> tuple[list[Any], tuple[PackedImage, ...]]:
    """Return messages with references in the place of images, and the images. Blocking.

    Raises InvalidRequestError for an image that cannot be read.
    """
    made, images = take_images(messages)
    packed = [_packed(image) for image in images]
    left = iter(zip(images, packed, strict=True))
    return [_with_references(message, left) for message in made], tuple(packed)


def _packed(image: ChatImage) -> PackedImage:
    from ...images import ImageLimits, read_image, read_image_file

    # The other end has the limits of its model, which are narrower.
    widest = ImageLimits(max_images=4096, max_pixels=2**28, max_bytes=2**30)
    value = image.value(widest.max_bytes)
    shape: tuple[int, ...] = ()
    if isinstance(value, PackedImage):
        return value
    if isinstance(value, Path):
        value = read_image_file(value, image.where, widest)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        pixels = value
        if not _is_plain_array(value):
            pixels = read_image(value, image.where, widest).pixels
        shape, value = pixels.shape, pixels.tobytes()
    data = bytes(value)
    if not data:
        raise InvalidRequestError(f"{image.where} has no bytes", field=image.where)
    return PackedImage(data, hashlib.sha256(data).hexdigest(), shape)


def _is_plain_array(value: Any) -> bool:
    """Return whether a value is an array whose pixels can be sent; the other end checks the rest.

    It needs no Pillow.
    """
    import numpy as np

    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3)


def _with_references(message: Any, left: Iterator[tuple[ChatImage, PackedImage]]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(part is IMAGE_PART for part in content):
        return message
    parts = [_reference(*next(left)) if part is IMAGE_PART else part for part in content]
    return {**message, "content": parts}


def _reference(image: ChatImage, packed: PackedImage) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "image", "sha256": packed.digest}
    if packed.shape:
        part["shape"] = list(packed.shape)
    if image.detail != "auto":
        part["detail"] = image.detail
    return part


def chunks_of(image: PackedImage, most: int) -> Iterator[list[Any]]:
    """Yield the params of the notifications of an image. most: bytes of a frame."""
    step = min(_CHUNK, most // 2)
    for start in range(0, len(image.data), step):
        yield [image.digest, len(image.data), start, image.data[start : start + step]]


def check_digest(value: object, where: str) -> str:
    """Return the digest of an image. Raises InvalidRequestError."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ASKED.bad(where, value, "64 hexadecimal digits, in lower case")
    return value


def read_references(content: Any, images: Any) -> Any:
    """Return received messages with a `PackedImage` in the place of each reference.

    content: plain data. images: a mapping of bytes by digest, of the images that are there.
    Raises UnknownImageError, and InvalidRequestError for a part of another shape.
    """
    if not isinstance(content, list):
        return content
    return [_read_message(message, f"messages[{i}]", images) for i, message in enumerate(content)]


def _read_message(message: Any, where: str, images: Any) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return message
    made = [
        _read_reference(part, f"{where}.content[{i}]", images)
        if isinstance(part, dict) and part.get("type") == "image" and "sha256" in part
        else part
        for i, part in enumerate(parts)
    ]
    return {**message, "content": made}


def _read_reference(part: dict[str, Any], where: str, images: Any) -> dict[str, Any]:
    digest = check_digest(part["sha256"], f"{where}.sha256")
    data = images.get(digest)
    if data is None:
        raise UnknownImageError(
            f"{where}.sha256 is {digest}, an image that is not here: none with this digest was "
            "sent over this connection, or later ones took its place; send it before the message",
            field=f"{where}.sha256",
        )
    shape = part.get("shape")
    if shape is not None:
        sizes = shape if isinstance(shape, list) and len(shape) in (2, 3) else [0]
        if any(type(one) is not int or one < 1 for one in sizes) or prod(sizes) != len(data):
            raise ASKED.bad(f"{where}.shape", shape, _SHAPE)
    kept = {name: part[name] for name in part if name not in ("sha256", "shape")}
    return {**kept, "image": PackedImage(data, digest, tuple(shape or ()))}


def unpacked(content: Any) -> Any:
    """Return messages of `read_references` with images as `chat` takes them."""
    if not isinstance(content, (list, tuple)):
        return content
    return [
        {**message, "content": [_unpacked_part(part) for part in message["content"]]}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in content
    ]


def _unpacked_part(part: Any) -> Any:
    image = part.get("image") if isinstance(part, dict) else None
    return {**part, "image": image.value} if isinstance(image, PackedImage) else part
