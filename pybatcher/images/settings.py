"""Reading the settings of a processor from the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFormatError

__all__ = [
    "BICUBIC",
    "BILINEAR",
    "CLIP",
    "HALF",
    "LANCZOS",
    "MAX_SETTING",
    "JsonFields",
    "ProcessorFiles",
    "read_levels",
    "read_resample",
]

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
"""Filters by the numbers that Pillow and the files of checkpoints have for them."""
_FILTERS = 6

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Means and standard deviations of the channels, from pixel values between 0 and 1."""

MAX_SETTING = 2**28
"""The largest number of pixels or of patches in a setting of a checkpoint."""


class JsonFields(Protocol):
    """The object of a JSON file: the part of `loading.checkpoints.fields.Fields` that is used here.

    The accessors raise ModelFormatError, which names the file, the field, its value and the
    expected one.
    """

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str) -> Any:
        """Return the unchecked value; None if the field is absent."""

    def error(self, name: str, expected: str) -> ModelFormatError:
        """Return the error for a value that is not the `expected` one."""

    def integer(self, name: str, low: int, high: int, default: Any = ...) -> Any:
        """Return a whole number from `low` to `high`."""

    def number(self, name: str, low: float, high: float, default: Any = ...) -> Any:
        """Return a number from `low` to `high`."""

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        """Return a list of `count` numbers from `low` to `high`."""

    def boolean(self, name: str, default: bool) -> bool:
        """Return True or False."""

    def text(self, name: str, default: Any = ...) -> Any:
        """Return a text."""

    def child(self, name: str) -> JsonFields:
        """Return the object in a field; it has no fields if the field is absent."""


def read_resample(fields: JsonFields, default: int) -> int:
    """Return the filter for resizing, a number of Pillow's."""
    found: int = fields.integer("resample", 0, _FILTERS - 1, default)
    return found


def read_levels(
    fields: JsonFields,
    statistics: tuple[Sequence[float], Sequence[float]],
    *,
    normalizes: bool = True,
    fused: bool = False,
) -> NDArray[np.float32]:
    """Return the normalised value of each pixel value: float32 (3, 256).

    statistics: the means and standard deviations if the file has none.
    normalizes: True if the processor normalises unless the file says otherwise.
    fused: True if it rescales the means and deviations instead of the pixels, which rounds
        differently.

    A value is rescaled in float64 and rounded to float32, then normalised in float32.
    """
    levels, scale = np.arange(256, dtype=np.float32), 1.0
    if fields.boolean("do_rescale", True):
        scale = fields.number("rescale_factor", 1e-9, 1e9, 1 / 255)
    fused = fused and fields.boolean("do_normalize", normalizes)
    if not fused:
        levels = (levels.astype(np.float64) * scale).astype(np.float32)
    if not fields.boolean("do_normalize", normalizes):
        return np.tile(levels, (3, 1))
    mean = statistics[0] if "image_mean" not in fields else _per_channel(fields, "image_mean", -1e9)
    std = statistics[1] if "image_std" not in fields else _per_channel(fields, "image_std", 1e-9)
    means, stds = np.array(mean, np.float32)[:, None], np.array(std, np.float32)[:, None]
    if fused:
        means, stds = means * np.float32(1 / scale), stds * np.float32(1 / scale)
    return (levels - means) / stds


def _per_channel(fields: JsonFields, name: str, low: float) -> list[float]:
    if isinstance(fields.get(name), list):
        return fields.numbers(name, 3, low, 1e9)
    return [fields.number(name, low, 1e9)] * 3


@dataclass(frozen=True, slots=True)
class ProcessorFiles:
    """The files of a checkpoint that describe its image processor.

    config: config.json.
    vision: `vision_config` in it.
    preprocessor: `image_processor` in processor_config.json, or preprocessor_config.json.
    processor: processor_config.json.
    tokenizer: tokenizer_config.json.
    """

    config: JsonFields
    vision: JsonFields
    preprocessor: JsonFields
    processor: JsonFields
    tokenizer: JsonFields

    def equal(self, fields: JsonFields, name: str, value: int) -> None:
        """Raise ModelFormatError if a setting of the processor is not the model's `value`."""
        if fields.integer(name, 1, MAX_SETTING, value) != value:
            raise fields.error(name, f"{value}, as in config.json")

    def edges(self) -> JsonFields:
        """Return the bounds on edges or pixels in `size`, which may not be a fixed size."""
        size = self.preprocessor.child("size")
        if "height" in size or "width" in size:
            raise self.preprocessor.error("size", "longest_edge instead of a height and a width")
        return size

    def special_token(self, name: str, default: str) -> str:
        """Return the text of a token that the tokenizer names."""
        tokens = [self.tokenizer]
        for group in ("model_specific_special_tokens", "extra_special_tokens"):
            if isinstance(self.tokenizer.get(group), dict):
                tokens.append(self.tokenizer.child(group))
        for fields in tokens:
            if isinstance(fields.get(name), dict):
                fields, name = fields.child(name), "content"
            if name in fields and fields.text(name):
                return str(fields.text(name))
        return default
