"""Images of a chat: from the value of a content part to the patches that a vision tower takes."""

from .limits import ImageLimits
from .prepared import ImageProcessor, PreparedImage, Tile
from .processors import read_processor
from .reading import DecodedImage, read_image, read_image_file

__all__ = [
    "DecodedImage",
    "ImageLimits",
    "ImageProcessor",
    "PreparedImage",
    "Tile",
    "read_image",
    "read_image_file",
    "read_processor",
]
