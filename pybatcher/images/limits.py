"""`ImageLimits`: bounds on the images of a request."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors.checks import OPTION

__all__ = ["ImageLimits"]

_MOST_IMAGES = 4096
_MOST_PIXELS = 2**28
_MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Bounds on the images of a request. They are checked before pixels are decoded.

    max_images: images in one request, from 0 to 4096; 0 refuses every image.
    max_pixels: width times height of an image, from 1 to 2**28. While an image is read and
        prepared it takes at most about 20 bytes for each of these pixels.
    max_bytes: bytes of an encoded image, from 1 to 2**30.

    Raises ConfigError, which names the option of the batcher: `max_images`, `max_image_pixels` or
    `max_image_bytes`.
    """

    max_images: int = 16
    max_pixels: int = 2**25
    max_bytes: int = 20 * 2**20

    def __post_init__(self) -> None:
        n_images = OPTION.whole("max_images", self.max_images, 0, _MOST_IMAGES)
        n_pixels = OPTION.whole("max_image_pixels", self.max_pixels, 1, _MOST_PIXELS)
        n_bytes = OPTION.whole("max_image_bytes", self.max_bytes, 1, _MOST_BYTES)
        object.__setattr__(self, "max_images", n_images)
        object.__setattr__(self, "max_pixels", n_pixels)
        object.__setattr__(self, "max_bytes", n_bytes)
