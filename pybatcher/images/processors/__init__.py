"""The processors of model families, and `read_processor`, which chooses one for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ..prepared import ImageProcessor
from ..settings import JsonFields, ProcessorFiles
from .gemma3 import Gemma3Processor
from .gemma4 import Gemma4Processor
from .idefics3 import Idefics3Processor
from .lfm2_vl import Lfm2VlProcessor
from .pixtral import PixtralProcessor
from .qwen_vl import QwenVlProcessor

__all__ = ["read_processor"]

_READERS: dict[str, Callable[[ProcessorFiles], ImageProcessor]] = {
    "gemma3": Gemma3Processor.read,
    "gemma4": Gemma4Processor.read,
    "idefics3": Idefics3Processor.read,
    "lfm2_vl": Lfm2VlProcessor.read,
    "mistral3": PixtralProcessor.read,
    "qwen2_vl": QwenVlProcessor.read,
    "qwen2_5_vl": QwenVlProcessor.read,
    "qwen3_vl": QwenVlProcessor.read,
    "qwen3_vl_moe": QwenVlProcessor.read,
    "qwen3_5": QwenVlProcessor.read,
    "qwen3_5_moe": QwenVlProcessor.read,
    "smolvlm": Idefics3Processor.read,
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
    read = _READERS.get(model_type)
    if read is None or "vision_config" not in config:
        return None
    processor = files("processor_config.json")
    preprocessor = (
        processor.child("image_processor")
        if "image_processor" in processor
        else files("preprocessor_config.json")
    )
    if not preprocessor.boolean("do_resize", True):
        raise preprocessor.error("do_resize", "true, because towers take whole patches")
    if preprocessor.boolean("do_center_crop", False):
        raise preprocessor.error("do_center_crop", "false")
    return read(
        ProcessorFiles(
            config=config,
            vision=config.child("vision_config"),
            preprocessor=preprocessor,
            processor=processor,
            tokenizer=files("tokenizer_config.json"),
        )
    )
