"""`VisionConfig`: the vision tower of a model, which computes embeddings of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .limits import (
    MAX_GROUP,
    MAX_LAYERS,
    MAX_VOCABULARY,
    Positive,
    Range,
    Width,
)
from .model_config import ModelConfig

__all__ = ["Deepstack", "Projector", "ProjectorLinear", "VisionConfig"]

ProjectorNorm = Literal["none", "rms", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorLinear:
    """A linear layer of a projector, and the activation after it."""

    n_out: Width
    activation: Literal["none", "silu", "gelu_tanh", "gelu"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """The layers that turn groups of consecutive rows of a tower into rows of the text model.

    A norm of each row, the pooling of each group, a norm of each pooled row, and linear layers.

    `csrc/config/config_fields.def` documents the scalar fields.
    linears: one or more linear layers; the last one has no activation.
    """

    group: Annotated[int, Range(1, MAX_GROUP)]
    norm_eps: Positive
    linears: tuple[ProjectorLinear, ...]
    pool: Literal["concat", "mean"] = "concat"
    scale: Positive = 1.0
    norm_before: ProjectorNorm = "none"
    norm_after: ProjectorNorm = "none"

    @property
    def out_size(self) -> int:
        """The width of a result row."""
        return self.linears[-1].n_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepstack:
    """A projector of the output of one layer of the tower.

    Its rows are further columns of the result, which the text model adds after a layer of its own.
    """

    layer: Annotated[int, Range(0, MAX_LAYERS - 1)]
    projector: Projector


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The architecture and sizes of a vision tower.

    A tower embeds the patches of an image, adds positions from a table, runs the layers of an
    encoder, and projects groups of consecutive rows to rows of the text model.

    `csrc/config/config_fields.def` documents the scalar fields.
    layers: the layers of the encoder; not causal, and with a vocabulary of 1.
    deepstack: projectors after other layers than the last, in ascending order of the layers.
    windowed_layers: for each layer, True if its attention is within the windows of a tile; () =
        none.
    """

    layers: ModelConfig
    patch_size: Width
    projector: Projector
    n_positions: Annotated[int, Range(0, MAX_VOCABULARY)] = 0
    pre_norm: bool = False
    final_norm: bool = False
    deepstack: tuple[Deepstack, ...] = ()
    windowed_layers: tuple[bool, ...] = ()

    @property
    def width(self) -> int:
        """The numbers of a result row: those of the projector, then those of `deepstack`."""
        return self.projector.out_size * (1 + len(self.deepstack))
