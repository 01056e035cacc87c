"""The processors of model families, and `read_processor`, which chooses one for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ..patches import JsonFields
from ..prepared import ImageProcessor
from .qwen_vl import QwenVlProcessor

__all__ = ["read_processor"]

_QWEN_VL = {
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    *("qwen3_5", "qwen3_5_moe"),
}


def read_processor(
    model_type: str, config: JsonFields, files: Callable[[str], JsonFields]
) -> ImageProcessor | None:
    """Return the image processor of a checkpoint; None if its model takes no images.

    model_type: as in config.json.
    config: the fields of config.json.
    files: returns the fields of a JSON file of the checkpoint by its name, as
        "preprocessor_config.json"; no fields if the file is absent.

    Raises ModelFormatError for settings that cannot work.
    """
    if model_type not in _QWEN_VL or "vision_config" not in config:
        return None
    processor = files("processor_config.json")
    preprocessor = (
        processor.child("image_processor")
        if "image_processor" in processor
        else files("preprocessor_config.json")
    )
    tokenizer = files("tokenizer_config.json")
    return QwenVlProcessor.read(config, preprocessor, tokenizer)
