"""`take_images`: takes the images out of the messages of a chat, which templates do not see."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST, plain_text, short, type_name

__all__ = ["IMAGE_PART", "ChatImage", "take_images"]

IMAGE_PART = {"type": "image"}
"""The content part that a template sees for an image."""

_TYPES = ("image", "image_url")
_DETAILS = ("auto", "low", "high")
_DATA = re.compile(r"data:image/[a-z0-9.+-]{1,64}(;[a-z0-9=.-]{1,64})*;base64,", re.IGNORECASE)
_WANTED = "a PIL.Image, the bytes of an image file, a pathlib.Path or a NumPy array of uint8"
_URL = "a mapping with the url of an image, a data URI (data:image/png;base64,...)"
_MESSAGES = 'a list of at least one {"role": ..., "content": ...}'


@dataclass(frozen=True, slots=True, eq=False)
class ChatImage:
    """An image of a chat, not read yet.

    where: its name in errors. detail: "auto", "low" or "high".
    given: the caller's value; a data URI if `is_data`.
    """

    where: str
    detail: str
    given: Any
    is_data: bool = False

    def value(self, most: int) -> Any:
        """Return the image as `read_image` takes it: that of a data URI as bytes.

        May take milliseconds. most: bytes of the image; more are refused.
        Raises InvalidRequestError for a text that is no base64.
        """
        if not self.is_data:
            return self.given
        text = self.given[self.given.index(",") + 1 :]
        if len(text) * 3 // 4 > most + 2:
            raise InvalidRequestError(
                f"{self.where} has {len(text) * 3 // 4} bytes; it must have at most {most} "
                "(max_image_bytes): scale it down or compress it",
                field=self.where,
            )
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except ValueError as error:
            raise InvalidRequestError(
                f"{self.where} is {short(self.given[:64])}, whose base64 is damaged: {error}",
                field=self.where,
            ) from None


def take_images(messages: Sequence[Any]) -> tuple[tuple[Any, ...], list[ChatImage]]:
    """Return the messages with `IMAGE_PART` in the place of each image, and the images in order.

    A message without an image is the same object, checked by `read_messages`.

    Raises InvalidRequestError for an image part of another shape, and for one in a message of the
    assistant.
    """
    images: list[ChatImage] = []
    with REQUEST.reading("messages", messages, _MESSAGES):
        made = tuple(
            _without_images(message, f"messages[{i}]", images) for i, message in enumerate(messages)
        )
    return made, images


def _without_images(message: Any, where: str, images: list[ChatImage]) -> Any:
    """Return a message without the values of its images, which are added to `images`."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    parts: list[Any] = list(content)
    places = list(_places(parts))
    if not places:
        return message
    if plain_text(message.get("role")) == "assistant":
        raise InvalidRequestError(
            f"{where}.content[{places[0]}] is an image in a message of the assistant, which has "
            "texts; put it into a message of the user",
            field=f"{where}.content[{places[0]}]",
        )
    for place in places:
        images.append(_read_part(parts[place], f"{where}.content[{place}]"))
        parts[place] = IMAGE_PART
    return {**message, "content": parts}


def _places(parts: list[Any]) -> Iterator[int]:
    for i, part in enumerate(parts):
        if isinstance(part, Mapping) and plain_text(part.get("type")) in _TYPES:
            yield i


def _read_part(part: Mapping[str, Any], where: str) -> ChatImage:
    if plain_text(part["type"]) == "image":
        value, name = part.get("image"), f"{where}.image"
        if value is None:
            hint = ""
            for other in ("source", "url", "path", "data", "base64", "image_url"):
                if part.get(other) is not None:
                    hint = f"; the part has {other}, which is not read"
            raise InvalidRequestError(
                f"{name} is {short(value)}; it must be {_WANTED}{hint}", field=name
            )
        detail = _detail(part.get("detail"), f"{where}.detail")
        is_data = (text := plain_text(value)) is not None and _DATA.match(text) is not None
        return ChatImage(name, detail, text if is_data else value, is_data)
    given, name = part.get("image_url"), f"{where}.image_url"
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"{name} is {short(given)}, of type {type_name(given)}; it must be {_URL}", field=name
        )
    url = plain_text(given.get("url"))
    if url is None or _DATA.match(url) is None:
        raise InvalidRequestError(
            f"{name}.url is {short(given.get('url') if url is None else url[:64])}; it must be a "
            'data URI (data:image/png;base64,...): no URL is fetched. {"type": "image", "image": '
            "value} takes other images",
            field=f"{name}.url",
        )
    return ChatImage(f"{name}.url", _detail(given.get("detail"), f"{name}.detail"), url, True)


def _detail(value: object, where: str) -> str:
    if value is None:
        return "auto"
    detail: str = REQUEST.choice(where, value, _DETAILS, "'auto', 'low' or 'high'")
    return detail
