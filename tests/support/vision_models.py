"""Small random models of transformers that take images, and the inputs of their vision towers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

__all__ = ["CASES", "Grid", "TowerTile", "VisionCase", "randomise"]

Grid = tuple[int, int]
"""The rows and columns of an image's patches."""

TowerTile = tuple[
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int32],
]
"""An argument of `Engine.tower_begin`: patches, coordinates, table_index, table_weight, windows."""

GRIDS: tuple[Grid, ...] = ((6, 8), (4, 4), (10, 14))


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCase:
    """A family's model, and how its tower is asked, in transformers and in the engine."""

    make: Callable[[], Any]
    tiles: Callable[[Any, Sequence[Grid]], list[TowerTile]]
    rows: Callable[[Any, Sequence[Grid], Sequence[TowerTile]], NDArray[np.float32]]
    grids: tuple[Grid, ...] = GRIDS


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Set all parameters to random numbers, with norms about 0.7, and return the module."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        mean, spread = (0.0, 0.2) if parameter.ndim > 1 else (0.7, 0.3)
        nn.init.normal_(parameter, mean, spread)
    return module.eval()


def no_windows() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def no_table(n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.zeros((n, 0), np.int32), np.zeros((n, 0), np.float32)


def patches_of(n: int, size: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, size), np.float32)


_TEXT = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
_QWEN_VISION = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
}


def _qwen3_vl() -> nn.Module:
    vision = {**_QWEN_VISION, "deepstack_visual_indexes": [0, 1]}
    config = Qwen3VLConfig(text_config=_TEXT, vision_config=vision)
    return randomise(Qwen3VLForConditionalGeneration(config))


def _qwen3_5() -> nn.Module:
    text = {
        **_TEXT,
        "rope_parameters": {**_TEXT["rope_parameters"], "partial_rotary_factor": 0.5},  # type: ignore[dict-item]
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    config = Qwen3_5Config(text_config=text, vision_config=_QWEN_VISION)
    return randomise(Qwen3_5ForConditionalGeneration(config))


def _qwen_tiles(module: Any, grids: Sequence[Grid]) -> list[TowerTile]:
    config = module.config.vision_config
    size = config.in_channels * config.temporal_patch_size * config.patch_size**2
    tiles = []
    for seed, grid in enumerate(grids):
        shape = torch.tensor([(1, *grid)])
        index, weight = get_vision_interpolation_indices_and_weights(
            shape,
            num_grid_per_side=int(config.num_position_embeddings**0.5),
            mode="bilinear",
            align_corners=True,
            spatial_merge_size=config.spatial_merge_size,
        )
        coordinates = get_vision_position_ids(shape, config.spatial_merge_size)
        tiles.append(
            (
                patches_of(grid[0] * grid[1], size, seed),
                coordinates.numpy().astype(np.int32),
                index.numpy().astype(np.int32),
                weight.numpy().astype(np.float32),
                no_windows(),
            )
        )
    return tiles


def _qwen_rows(
    module: Any, grids: Sequence[Grid], tiles: Sequence[TowerTile]
) -> NDArray[np.float32]:
    pixels = torch.from_numpy(np.concatenate([tile[0] for tile in tiles]))
    with torch.no_grad():
        found = module.model.visual(pixels, torch.tensor([(1, *grid) for grid in grids]))
    parts = [found.pooler_output, *getattr(found, "deepstack_features", [])]
    return torch.cat(parts, -1).numpy()


CASES: dict[str, VisionCase] = {
    "qwen3_vl": VisionCase(make=_qwen3_vl, tiles=_qwen_tiles, rows=_qwen_rows),
    "qwen3_5": VisionCase(make=_qwen3_5, tiles=_qwen_tiles, rows=_qwen_rows),
}
"""The cases by `model_type`."""
