"""Processors of pybatcher for the settings that a checkpoint of transformers has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from image_files import WHERE
from PIL import Image

from pybatcher.images import (
    ImageLimits,
    ImageProcessor,
    PreparedImage,
    Tile,
    read_image,
    read_processor,
)
from pybatcher.loading.checkpoints.fields import Fields

Json = Mapping[str, Any]


def processor_of(
    model_type: str,
    vision: Json | None = None,
    preprocessor: Json | None = None,
    *,
    config: Json | None = None,
    processor: Json | None = None,
    tokenizer: Json | None = None,
) -> ImageProcessor:
    """Return the processor of a checkpoint with these files."""
    files = {
        "preprocessor_config.json": preprocessor,
        "processor_config.json": processor,
        "tokenizer_config.json": tokenizer,
    }
    fields = Fields(
        {"model_type": model_type, "vision_config": dict(vision or {}), **(config or {})},
        "config.json",
    )
    found = read_processor(model_type, fields, lambda name: Fields(files.get(name) or {}, name))
    assert found is not None
    return found


def prepared(processor: ImageProcessor, image: Image.Image, detail: str = "auto") -> PreparedImage:
    """Read and prepare an image."""
    return processor.prepare(read_image(image, WHERE, ImageLimits()), detail)


def only_tile(found: PreparedImage) -> Tile:
    """Return the one tile of an image."""
    (tile,) = found.tiles
    return tile
