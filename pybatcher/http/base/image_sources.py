"""Reads the images of requests: from data URIs and base64, or from the hosts that may be asked."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from ...web import unless_gone
from .body_room import BodyRoom
from .http_error import HttpError, bad
from .image_hosts import ImageHosts

__all__ = ["ImageSource", "image_part", "load_images", "read_image_url", "read_media_type"]

_DATA = re.compile(r"data:([a-z0-9.+/-]{1,64});base64,", re.IGNORECASE)
_MEDIA = re.compile(r"image/[a-z0-9][a-z0-9.+-]{0,60}")
_DETAILS = ("low", "high", "auto")
_SLICE = 2**18  # characters of base64 that are decoded at a time, a multiple of four
_SHORT = 2**14  # characters of base64 that are decoded on the loop
_MOST_URLS = 16  # images of one request that are fetched
_WANTED = "a data URI (data:image/png;base64,...)"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image of a request before it is decoded or fetched.

    where: the field of the request. text: base64 from index `start` on, or an https URL if `start`
    is -1.
    """

    where: str
    text: str
    start: int = 0

    @property
    def is_url(self) -> bool:
        """True if the image is to be fetched."""
        return self.start < 0


def image_part(source: ImageSource, detail: object = None, where: str = "") -> dict[str, Any]:
    """Return the part of a message that has this image. Raises HttpError.

    detail: "low", "high", "auto" or None. where: its field in the request.
    """
    part: dict[str, Any] = {"type": "image", "image": source}
    if detail is not None:
        if not isinstance(detail, str) or detail not in _DETAILS:
            raise bad(where, detail, "'low', 'high' or 'auto'")
        part["detail"] = detail
    return part


def read_image_url(value: object, where: str) -> ImageSource:
    """Return the image of a data URI, or of a URL that `load_images` may fetch. Raises HttpError.

    where: the field of the request.
    """
    if not isinstance(value, str) or not value:
        raise bad(where, value, _WANTED)
    if value[:8].lower() == "https://":
        return ImageSource(where, value, -1)
    found = _DATA.match(value)
    if found is None:
        if value[:5].lower() == "data:":
            wanted = f"{_WANTED}: of an image, in base64, and without other parameters"
            raise bad(where, value[:64], wanted)
        wanted = f"{_WANTED}; other schemes are not read, and bare base64 neither"
        raise bad(where, value[:64], wanted)
    read_media_type(found[1], where)
    return ImageSource(where, value, found.end())


def read_media_type(value: object, where: str) -> None:
    """Raise HttpError for a media type that no image of pixels has."""
    kind = value.lower() if isinstance(value, str) else ""
    if kind.startswith("image/svg"):
        wanted = "that of an image of pixels, as image/png: convert the drawing"
        raise bad(where, value, wanted)
    if not _MEDIA.fullmatch(kind):
        raise bad(where, value, "that of an image, as image/png or image/jpeg")


async def load_images(
    request: Request, messages: list[dict[str, Any]], hosts: ImageHosts, room: BodyRoom
) -> dict[str, str]:
    """Replace each `ImageSource` of the messages by the bytes of its image.

    hosts: the hosts that may be asked for images. room: checks the memory for them.
    Returns the fields of the request by the places of the images in the messages.
    Raises HttpError, which names the field, and ClientGoneError.
    """
    names: dict[str, str] = {}
    urls: list[dict[str, Any]] = []
    for place, part in _image_parts(messages):
        source = part["image"]
        names[place] = source.where
        if source.is_url:
            hosts.check(source.text, source.where)
            urls.append(part)
    if len(urls) > _MOST_URLS:
        where = urls[_MOST_URLS]["image"].where
        told = f"{where} is one of {len(urls)} images to be fetched; at most {_MOST_URLS} may be"
        raise HttpError(400, f"{told}: send the others as data URIs", param=where)
    for part in urls:  # one after another, so that a request takes little of the network
        source = part["image"]
        part["image"] = await unless_gone(request, hosts.fetch(source.text, source.where, room))
    for _, part in _image_parts(messages):
        source = part["image"]
        if isinstance(source, ImageSource):
            size = len(source.text) - source.start
            if size <= _SHORT:
                part["image"] = _decoded(source)
                await asyncio.sleep(0)  # there can be thousands
            else:
                room.check_memory(2 * size)  # the image in pieces, and in one piece
                part["image"] = await asyncio.to_thread(_decoded, source)
            del source
    return names


def _image_parts(messages: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts with images, each with the name of its place."""
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "image":
                yield f"messages[{i}].content[{j}].image", part


def _decoded(source: ImageSource) -> bytes:
    """Return the bytes of base64. Raises HttpError.

    The decoder holds the GIL, so that it decodes a slice at a time.
    """
    text, start = source.text, source.start
    wanted = "base64 of an image: complete, padded, of the standard alphabet, and without spaces"
    if len(text) == start:
        raise bad(source.where, "", wanted)
    slices = range(start, len(text), _SLICE)
    try:
        # Padding inside of the text would pass where a slice ends.
        if 0 <= text.find("=", start) < len(text) - 2:
            raise ValueError("there is padding before the end")
        decoded = [binascii.a2b_base64(text[i : i + _SLICE], strict_mode=True) for i in slices]
    except ValueError as error:  # binascii.Error is one
        raise bad(source.where, text[start : start + 32], f"{wanted} ({error})") from None
    return b"".join(decoded)
