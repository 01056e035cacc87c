"""`read_image`: from the value of a content part to RGB pixels, with every bound checked."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequestError, PybatcherError
from ..errors.checks import REQUEST, field_error, short, type_name
from ..errors.distribution import install_extra
from .limits import ImageLimits

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DecodedImage", "read_image", "read_image_file"]

_WANTED = (
    "a PIL.Image, the bytes of a PNG, JPEG, WebP, GIF or BMP file, a pathlib.Path of such a file, "
    "or a NumPy array of uint8 with the shape (height, width), (height, width, 3) or "
    "(height, width, 4)"
)
_SAVE_AGAIN = "save it again as PNG or JPEG"
_MAX_SIDE = 2**16
_STRIP_PIXELS = 2**20
# A progressive JPEG decodes all its pixels once per scan. Encoders write about ten scans.
_MAX_SCANNED_PIXELS = 2**30
_MIN_SCANS = 16
_MAGIC = {
    "PNG": (0, b"\x89PNG\r\n\x1a\n"),
    "JPEG": (0, b"\xff\xd8\xff"),
    "WebP": (8, b"WEBP"),
    "GIF": (0, b"GIF8"),
    "BMP": (0, b"BM"),
}
_REFUSED_MAGIC = {
    "TIFF": [(0, b"II*\x00"), (0, b"MM\x00*"), (0, b"II+\x00"), (0, b"MM\x00+")],
    "HEIC or AVIF": [(4, b"ftyp")],
    "SVG or another text": [(0, b"<")],
    "PDF": [(0, b"%PDF")],
}


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An image in memory.

    image: a Pillow image of mode RGB, private to its holder.
    where: the field of the request that the image is from, for error messages.
    """

    image: Image.Image
    where: str

    @property
    def width(self) -> int:
        """Columns of pixels."""
        return self.image.width

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return self.image.height

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """A copy of the pixels: uint8 (height, width, 3)."""
        return np.asarray(self.image)

    def error(self, wanted: str) -> PybatcherError:
        """Return the InvalidRequestError for a size that is not `wanted`."""
        fault = f"has {self.width} x {self.height} pixels (width x height); {wanted}"
        return field_error(InvalidRequestError, self.where, fault)


def read_image(value: Any, where: str, limits: ImageLimits) -> DecodedImage:
    """Read an image of any accepted type. Blocking: call it on a thread.

    value: a PIL.Image, the bytes of a file in one of the formats PNG, JPEG, WebP, GIF and BMP, the
        pathlib.Path of such a file, or a uint8 array of shape (height, width), (height, width, 3)
        or (height, width, 4).
    where: the field of the request, for error messages.

    The first frame of an animation is read. Transparent pixels are composited onto white. The
    EXIF orientation of a file is applied; a PIL.Image is taken as it is.

    Raises InvalidRequestError for everything that is no image within the limits, and if Pillow is
    not installed.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise InvalidRequestError(
            f"images need Pillow ({error}); to install it: {install_extra('images')}", field=where
        ) from error
    with REQUEST.reading(where, value, _WANTED):
        if isinstance(value, PIL.Image.Image):
            image = _read_pillow(value, where, limits)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            image = _read_encoded(_as_bytes(value, where, limits), where, limits)
        elif isinstance(value, Path):
            image = _read_encoded(read_image_file(value, where, limits), where, limits)
        elif isinstance(value, np.ndarray):
            image = _read_array(value, where, limits)
        else:
            raise _wrong_type(value, where)
    return DecodedImage(image, where)


def _wrong_type(value: Any, where: str) -> PybatcherError:
    hint = ""
    if isinstance(value, str):
        hint = "; pass a path as pathlib.Path(...), and a data URI as the bytes that it encodes"
    elif type(value).__module__.partition(".")[0] == "torch":
        hint = "; pass a tensor as an array: tensor.numpy()"
    shown = short(value) if isinstance(value, str) else f"of type {type_name(value)}"
    return field_error(InvalidRequestError, where, f"is {shown}; it must be {_WANTED}{hint}")


def _fault(where: str, fault: str) -> PybatcherError:
    return field_error(InvalidRequestError, where, fault)


def _check_size(width: int, height: int, where: str, limits: ImageLimits) -> None:
    shape = f"{width} x {height} pixels (width x height)"
    if width < 1 or height < 1:
        raise _fault(where, f"has {shape}; both sides must be at least 1")
    if max(width, height) > _MAX_SIDE:
        raise _fault(where, f"has {shape}; each side must be at most {_MAX_SIDE}: scale it down")
    if width * height > limits.max_pixels:
        raise _fault(
            where,
            f"has {shape}, which is {width * height} pixels; it must have at most "
            f"{limits.max_pixels} (max_image_pixels): scale it down",
        )


def _check_bytes(n_bytes: int, where: str, limits: ImageLimits) -> None:
    if n_bytes == 0:
        raise _fault(where, f"has no bytes; it must be {_WANTED}")
    if n_bytes > limits.max_bytes:
        raise _fault(
            where,
            f"has {n_bytes} bytes; it must have at most {limits.max_bytes} (max_image_bytes): "
            "scale it down or compress it",
        )


def _as_bytes(value: bytes | bytearray | memoryview, where: str, limits: ImageLimits) -> bytes:
    n_bytes = value.nbytes if isinstance(value, memoryview) else len(value)
    _check_bytes(n_bytes, where, limits)
    return value if type(value) is bytes else bytes(value)


def read_image_file(path: Path, where: str, limits: ImageLimits) -> bytes:
    """Return the bytes of a regular file; the arguments are those of `read_image`. Blocking.

    Raises InvalidRequestError.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise _fault(where, f"is {short(path)}, which is no regular file")
            _check_bytes(facts.st_size, where, limits)
            data = file.read(limits.max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _fault(where, f"is {short(path)}, which cannot be read: {reason}") from error
    _check_bytes(len(data), where, limits)  # the file may have grown
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    # opening a FIFO for reading would wait for a writer
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_array(array: NDArray[Any], where: str, limits: ImageLimits) -> Image.Image:
    from PIL import Image

    shape = array.shape
    if array.dtype != np.uint8:
        way_out = (
            "(array * 255).round().astype(numpy.uint8) converts values from 0 to 1"
            if array.dtype.kind == "f"
            else "scale it to values from 0 to 255 and call .astype(numpy.uint8)"
        )
        raise _fault(where, f"is an array of {array.dtype}; it must be one of uint8: {way_out}")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        hint = ""
        if len(shape) == 3 and shape[0] in (1, 3, 4):
            hint = "; numpy.moveaxis(array, 0, -1) moves the channels to the end"
        raise _fault(
            where,
            f"is an array of shape {shape}; it must be (height, width), (height, width, 3) or "
            f"(height, width, 4){hint}",
        )
    _check_size(shape[1], shape[0], where, limits)
    pixels = np.ascontiguousarray(array).view(np.ndarray)
    if len(shape) == 2 or shape[2] == 1:
        return Image.fromarray(pixels.reshape(shape[:2])).convert("RGB")
    if shape[2] == 3:
        return Image.fromarray(pixels)
    opaque = np.empty((*shape[:2], 3), np.uint8)
    for rows in _strips(*shape[:2]):
        part = pixels[rows]
        alpha = part[..., 3:] / 255
        opaque[rows] = np.round(alpha * part[..., :3] + (1 - alpha) * 255)
    return Image.fromarray(opaque)


def _strips(height: int, width: int) -> list[slice]:
    """Return ranges of rows with about a million pixels each, which bound the memory of a step."""
    n_rows = max(1, _STRIP_PIXELS // width)
    return [slice(y, min(y + n_rows, height)) for y in range(0, height, n_rows)]


def _read_pillow(image: Image.Image, where: str, limits: ImageLimits) -> Image.Image:
    _check_size(image.width, image.height, where, limits)
    if image.mode == "F":
        raise _fault(
            where,
            "has the mode F (floating point); it must have whole values from 0 to 255: scale it "
            'and call .convert("L")',
        )
    try:
        image.load()
        return _to_rgb(image)
    except Exception as error:
        raise _fault(where, f"cannot be read: {short(str(error))}; {_SAVE_AGAIN}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return a copy of mode RGB, with transparent pixels composited onto white."""
    from PIL import Image

    if not ("A" in image.getbands() or image.info.get("transparency") is not None):
        return image.convert("RGB")
    opaque = Image.new("RGB", image.size)
    for rows in _strips(image.height, image.width):
        box = (0, rows.start, image.width, rows.stop)
        part = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", part.size, (255, 255, 255, 255))
        opaque.paste(Image.alpha_composite(white, part).convert("RGB"), box)
    return opaque


def _has(data: bytes, magic: tuple[int, bytes]) -> bool:
    return data.startswith(magic[1], magic[0])


def _read_encoded(data: bytes, where: str, limits: ImageLimits) -> Image.Image:
    kind = next((kind for kind, magic in _MAGIC.items() if _has(data, magic)), None)
    if kind is None:
        kinds = _REFUSED_MAGIC.items()
        found = [kind for kind, magics in kinds if any(_has(data, magic) for magic in magics)]
        shown = f"({found[0]}) " if found else ""
        raise _fault(
            where,
            f"begins with {short(data[:16])} {shown}and is no PNG, JPEG, WebP, GIF or BMP file; "
            f"{_SAVE_AGAIN}",
        )
    try:
        return _decode(data, kind, where, limits)
    except PybatcherError:
        raise
    except Exception as error:
        raise _fault(
            where, f"cannot be decoded as {kind}: {short(str(error))}; {_SAVE_AGAIN}"
        ) from error


def _decode(data: bytes, kind: str, where: str, limits: ImageLimits) -> Image.Image:
    """Decode a file. Its header is checked before memory for pixels is allocated.

    The classes of Pillow are called by name. `Image.open` would try others, and checks the size by
    a setting that belongs to the program, `Image.MAX_IMAGE_PIXELS`.
    """
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    file = io.BytesIO(data)
    image: Image.Image
    if kind == "PNG":
        image = PngImagePlugin.PngImageFile(file)
    elif kind == "JPEG":
        image = JpegImagePlugin.JpegImageFile(file)
    elif kind == "GIF":
        _check_size(*_gif_size(data), where, limits)
        image = GifImagePlugin.GifImageFile(file)
    elif kind == "BMP":
        image = BmpImagePlugin.BmpImageFile(file)
    else:
        _check_size(*_webp_size(data), where, limits)  # the decoder allocates when it opens
        image = WebPImagePlugin.WebPImageFile(file)
    _check_size(image.width, image.height, where, limits)
    if kind == "JPEG":
        _check_scans(data.count(b"\xff\xda"), image, where)
    orientation = _orientation(image)
    image.load()
    if image.mode != "RGB" or "transparency" in image.info:
        image = _to_rgb(image)
    return image if orientation is None else image.transpose(orientation)


def _gif_size(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return the size of the canvas from the first chunk of a WebP file."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        width = 1 + int.from_bytes(data[24:27], "little")
        return width, 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and len(data) >= 30:
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        return width, int.from_bytes(data[28:30], "little") & 0x3FFF
    raise ValueError("the header has no size")


def _check_scans(n_scans: int, image: Image.Image, where: str) -> None:
    n_pixels = image.width * image.height
    most = max(_MIN_SCANS, _MAX_SCANNED_PIXELS // n_pixels)
    if n_scans > most:
        raise _fault(
            where,
            f"is a JPEG of {image.width} x {image.height} pixels with {n_scans} scans; it must "
            f"have at most {most}: save it again",
        )


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Return the transposition that the EXIF data of a file ask for; None: there is none."""
    from PIL import Image

    try:
        value: Any = image.getexif().get(0x0112)
    except Exception:  # damaged metadata; the pixels are intact
        return None
    return {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(value)
