"""`Conversation`: the messages of `pybatcher chat`, and the file that keeps them."""

from __future__ import annotations

import base64
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ConfigError, InvalidRequestError
from ..text.chat_images import take_images
from ..text.chat_messages import read_messages

__all__ = ["Conversation", "Message", "image_part"]

Message = dict[str, Any]

_MOST_BYTES = 2**26
_KINDS = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"RIFF", "webp"),
)
_WANTED = '{"messages": [{"role": ..., "content": ...}, ...]}'


class Conversation:
    """A conversation with a model.

    messages: all of it, for files. sent: the part that the model gets; the oldest turns may have
        been dropped from it.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sent: list[Message] = []

    def add(self, asked: Sequence[Message], answers: Sequence[Message]) -> None:
        """Add a question and its answer. asked: all that the model got, the question last."""
        self.messages += [asked[-1], *answers]
        self.sent = [*asked, *answers]

    def clear(self) -> None:
        """Begin another conversation."""
        self.messages, self.sent = [], []

    def load(self, path: str) -> None:
        """Replace the conversation by that of a file. Raises ConfigError; then nothing changes."""
        data = _read(path)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no JSON: {error}; it must be {_WANTED}") from None
        messages: Any = found.get("messages") if isinstance(found, dict) else found
        if messages != []:
            try:
                texts = take_images(messages)[0] if isinstance(messages, list) else messages
                read_messages(texts, keeps_null=True, arguments="mapping")
            except InvalidRequestError as error:
                raise ConfigError(f"{path}: {error}; the file must be {_WANTED}") from None
        self.messages, self.sent = messages, list(messages)

    def save(self, path: str) -> None:
        """Write the conversation to a file, which is complete or unchanged. Raises ConfigError."""
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1) + "\n"
        written = None
        try:
            target = Path(os.path.realpath(path))
            if target.exists() and not target.is_file():
                raise ConfigError(f"{path} is no file; name a file for the conversation")
            handle, written = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            os.replace(written, target)
        except (OSError, ValueError) as error:
            if written is not None:
                with suppress(OSError):
                    os.unlink(written)
            raise _refusal(
                path, "cannot be written", error, "name a file in a folder of yours"
            ) from None


def image_part(path: str) -> dict[str, Any]:
    """Return the part of a message with the image of a file. Raises ConfigError.

    It has a data URI, which the file of a conversation can keep.
    """
    from ..images import ImageLimits, read_image_file

    if not path:
        raise ConfigError("image needs the name of a file: --image FILE, or /image FILE")
    try:
        data = read_image_file(Path(path), "image", ImageLimits())
    except InvalidRequestError as error:
        raise ConfigError(str(error)) from None
    kind = next((kind for magic, kind in _KINDS if data.startswith(magic)), None)
    if kind is None:
        raise ConfigError(
            f"{path} is no image; name a file in one of the formats PNG, JPEG, WebP, GIF and BMP"
        )
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _read(path: str) -> bytes:
    """Return the contents of a file. Raises ConfigError."""
    advice = "name one that /save or --conversation wrote"
    try:
        # Opening a FIFO without a writer would wait; reading a device may never end.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES:
                return file.read()
    except (OSError, ValueError) as error:
        raise _refusal(path, "cannot be read", error, advice) from None
    raise ConfigError(f"{path} is no file of at most {_MOST_BYTES} bytes; {advice}")


def _refusal(path: str, fault: str, error: Exception, advice: str) -> ConfigError:
    """Return the error of a file, with the system's reason."""
    if isinstance(error, ConfigError):
        return error
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{path} {fault} ({reason}); {advice}")
