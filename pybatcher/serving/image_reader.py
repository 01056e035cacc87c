"""`ImageReader`: reads the images of chats, and finds their tokens in the prompts."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRequestError, ModelFormatError, PybatcherError
from ..images import ImageLimits, read_image
from ..scheduling import PlacedTile, PromptImages
from ..text.chat_images import ChatImage
from .image_ids import ImageIds

if TYPE_CHECKING:
    from ..images import ImageProcessor, PreparedImage

__all__ = ["ImageReader"]

_KEPT_BYTES = 2**26  # of images that are kept prepared

Prompt = tuple[int, ...]


class ImageReader:
    """Reads the images of chats, for one model. Any thread may use it.

    processor: prepares images for the model. token_id: the id of its image token.
    start_over: as in `ImageIds`.

    An image that is sent again, as in every turn of a chat, is prepared once: the latest ones are
    kept, by the digest of their bytes.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        limits: ImageLimits,
        token_id: int,
        start_over: Callable[[], object],
        *,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._processor = processor
        self._limits = limits
        self._token_id = token_id
        self._ids = ImageIds(start_over)
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[bytes, PreparedImage] = OrderedDict()
        self._n_kept_bytes = 0
        self._lock = threading.Lock()

    def check(self, images: Sequence[ChatImage]) -> None:
        """Raise InvalidRequestError for more images than a chat may have."""
        most = self._limits.max_images
        if len(images) > most:
            raise InvalidRequestError(
                f"messages have {len(images)} images; a chat may have at most {most} (max_images): "
                "send fewer, or raise the option",
                field=images[most].where,
            )

    def read(
        self,
        images: Sequence[ChatImage],
        render: Callable[[Mapping[str, str]], str],
        encode: Callable[[str], Prompt],
        check: Callable[[int], object],
        is_wanted: Callable[[], bool],
    ) -> tuple[Prompt, PromptImages]:
        """Return the token ids of a chat with images, and the images with their places in it.

        Blocking: call it on a thread. The prompt has image ids in the place of the image tokens.

        render: returns the text of the chat, with stand-ins for some texts (`ChatTemplate.render`).
        encode: returns the token ids of the text. check: gets the number of image tokens so far,
            and raises an error if there are too many.
        is_wanted: called between two images; False ends the reading with an error.

        Raises InvalidRequestError for an image that cannot be read, and for a chat template that
        shows another number of images.
        """
        # A text of the user may contain the placeholder or the image token: it is no image.
        key = secrets.token_hex(8)
        written = dict.fromkeys((self._processor.placeholder, self._processor.image_token))
        stand_ins = {text: f"[{key}.{i}]" for i, text in enumerate(written)}
        pieces = render(stand_ins).split(self._processor.placeholder)
        if len(pieces) != len(images) + 1:
            raise InvalidRequestError(
                f"messages have {len(images)} images, of which the chat template shows "
                f"{len(pieces) - 1}; put images into messages of the user",
                field="messages",
            )
        prepared: list[PreparedImage] = []
        n_tokens = 0
        for image in images:
            if not is_wanted():
                raise InvalidRequestError("the call was given up", field="messages")
            prepared.append(self._prepared(image))
            n_tokens += prepared[-1].n_tokens
            check(n_tokens)
        text, are_images = self._expanded(pieces, prepared, stand_ins)
        return self._placed(encode(text), are_images, prepared)

    def _prepared(self, image: ChatImage) -> PreparedImage:
        value = image.value(self._limits.max_bytes)
        key = _key(value, image.detail, self._limits.max_bytes)
        if key is not None:
            with self._lock:
                if (kept := self._kept.get(key)) is not None:
                    self._kept.move_to_end(key)
                    return kept
        decoded = read_image(value, image.where, self._limits)
        try:
            prepared = self._processor.prepare(decoded, image.detail)
        except (PybatcherError, MemoryError):
            raise
        except Exception as error:
            raise InvalidRequestError(
                f"{image.where} cannot be prepared for this model: {error}", field=image.where
            ) from error
        if key is not None:
            self._keep(key, prepared)
        return prepared

    def _keep(self, key: bytes, prepared: PreparedImage) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = prepared
            self._n_kept_bytes += _n_bytes(prepared)
            while self._n_kept_bytes > self._kept_bytes:
                self._n_kept_bytes -= _n_bytes(self._kept.popitem(last=False)[1])

    def _expanded(
        self,
        pieces: Sequence[str],
        prepared: Sequence[PreparedImage],
        stand_ins: Mapping[str, str],
    ) -> tuple[str, list[bool]]:
        """Return the text of the chat, and of each image token in it whether it is of an image."""
        texts: list[str] = []
        are_images: list[bool] = []
        for i, piece in enumerate(pieces):
            for text, stand_in in stand_ins.items():
                piece = piece.replace(stand_in, text)
            texts.append(piece)
            are_images += [False] * piece.count(self._processor.image_token)
            if i < len(prepared):
                texts.append(prepared[i].text)
                are_images += [True] * prepared[i].n_tokens
        return "".join(texts), are_images

    def _placed(
        self, tokens: Prompt, are_images: Sequence[bool], prepared: Iterable[PreparedImage]
    ) -> tuple[Prompt, PromptImages]:
        """Return the prompt with image ids, and the places of the tiles."""
        found = np.flatnonzero(np.array(tokens, np.int64) == self._token_id).tolist()
        if len(found) != len(are_images):
            raise InvalidRequestError(
                f"messages have a text of which the tokenizer makes {len(found)} image tokens in "
                f"the place of {len(are_images)}: leave texts like "
                f"{self._processor.image_token!r} out",
                field="messages",
            )
        places = list(compress(found, are_images))
        tiles = [tile for one in prepared for tile in one.tiles]
        if sum(tile.n_tokens for tile in tiles) != len(places):
            raise ModelFormatError("the image processor has a tile without tokens of its own")
        placed: list[PlacedTile] = []
        prompt = list(tokens)
        begin = 0
        for tile, tile_id in zip(tiles, self._ids.first_ids(tiles), strict=True):
            own = places[begin : begin + tile.n_tokens]
            begin += tile.n_tokens
            for first, last in _runs(own):
                start, n_tokens = own[first], last - first
                ids = range(tile_id + first, tile_id + last)
                prompt[start : start + n_tokens] = ids
                placed.append(PlacedTile(start, n_tokens, ids[0], tile, first))
        starts = [(one.start, one.tile) for one in placed if not one.offset]
        positions = self._processor.positions(tokens, starts)
        images = PromptImages(tuple(placed), positions, self._token_id)
        return tuple(prompt), self._ids.hold(images)


def _key(value: Any, detail: str, most: int) -> bytes | None:
    """Return the digest of the bytes of an image; None for another kind, and for a large one."""
    digest = sha256(detail.encode())
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            digest.update(b"file")
        elif type(value) is np.ndarray and value.dtype == np.uint8:
            digest.update(repr(value.shape).encode())
            value = np.ascontiguousarray(value).data
        else:
            return None
        if memoryview(value).nbytes > most:
            return None
        digest.update(value)
    except Exception:  # the reader of images names the fault
        return None
    return digest.digest()


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each range of indices at which the places follow one another."""
    begin = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            yield begin, i
            begin = i


def _n_bytes(prepared: PreparedImage) -> int:
    arrays = (
        array
        for tile in prepared.tiles
        for array in (tile.pixels, tile.coordinates, tile.table_index, tile.table_weight)
    )
    return len(prepared.text) + sum(array.nbytes for array in arrays)
