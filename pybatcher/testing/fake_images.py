"""`FakeImageProcessor`: prepares images for a `FakeEngine`, which has no vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..images import DecodedImage, PreparedImage, Tile

__all__ = ["IMAGE_TOKEN", "FakeImageProcessor"]

IMAGE_TOKEN = "<|image|>"
_SIDE = 32  # pixels of the square that a token stands for
_MOST_TOKENS = 8  # in a row or a column


class FakeImageProcessor:
    """Makes an image a run of tokens: one for each 32 x 32 pixels, up to 8 x 8 tokens.

    Images with different pixels have different tiles. detail "low": one token.
    """

    placeholder = image_token = IMAGE_TOKEN

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Return the image as one tile."""
        import numpy as np

        from ..images import PreparedImage
        from ..images.prepared import make_tile

        pixels = image.pixels
        most = 1 if detail == "low" else _MOST_TOKENS
        rows, columns = (min(most, -(-side // _SIDE)) for side in pixels.shape[:2])
        n_tokens = rows * columns
        content = sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
        patches = np.frombuffer(content, np.uint8)[:3].reshape(1, 3).repeat(n_tokens, 0)
        places = np.indices((rows, columns)).reshape(2, -1).T
        tile = make_tile(
            settings=f"fake {content.hex()}",
            pixels=np.ascontiguousarray(patches),
            levels=np.zeros((3, 256), np.float32),
            coordinates=np.ascontiguousarray(places, np.int32),
            n_tokens=n_tokens,
            grid=(1, rows, columns),
        )
        return PreparedImage((tile,), IMAGE_TOKEN * n_tokens)

    def positions(
        self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]
    ) -> NDArray[np.int32] | None:
        """Return None: rope positions are the indices of tokens."""
        return None
