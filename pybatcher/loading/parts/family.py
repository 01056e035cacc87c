"""`Family`: the model types, classes and GGUF architectures that one module of `families` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from .gguf_contents import GgufContents
from .gguf_vision import GgufVision, Mmproj

__all__ = ["Family", "GgufVisionReader", "ModelClasses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClasses:
    """The transformers classes of one `model_type`, by their names.

    model: the language model; "": the type is an encoder.
    base: the language model without its head, which embedders have; "": such a file is refused.
    published: the class in files that transformers did not write; "": the same as `model`.
    encoders: the classes of an encoder, with and without heads; the heads are not loaded.
    """

    model: str = ""
    base: str = ""
    published: str = ""
    encoders: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of the classes in transformers."""
        return tuple(filter(None, (self.model, self.base, *self.encoders)))


class GgufVisionReader(NamedTuple):
    """The function for one kind of projector.

    architectures: of GGUF files whose models may have such a tower.
    read: returns the blueprint of the model with the tower, and its image processor's settings.
    """

    architectures: tuple[str, ...]
    read: Callable[[Mmproj, Blueprint], GgufVision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models: the functions and names by which the loader reads its files.

    hf: functions that read config.json, by `model_type`.
    classes: the names of the transformers class or classes, by `model_type`.
    gguf: functions that read the metadata of a GGUF file, by `general.architecture`; the rules of
        the returned blueprint have GGUF's names as sources.
    gguf_vision: functions that read an mmproj file, by `clip.projector_type`.
    quant_methods: values of `quant_method` whose checkpoints the family's own rules read.

    The functions raise ModelFormatError for an unsupported option or an impossible size.
    """

    hf: Mapping[str, Callable[[Fields], Blueprint]]
    classes: Mapping[str, str | ModelClasses]
    gguf: Mapping[str, Callable[[GgufContents], Blueprint]] = field(default_factory=dict)
    gguf_vision: Mapping[str, GgufVisionReader] = field(default_factory=dict)
    quant_methods: tuple[str, ...] = ()

    def classes_of(self, model_type: str) -> ModelClasses:
        """Return the classes of a `model_type` of the family."""
        found = self.classes[model_type]
        return ModelClasses(model=found) if isinstance(found, str) else found
