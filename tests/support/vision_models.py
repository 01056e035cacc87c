"""Small random models of transformers that take images, and the inputs of their vision towers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from pybatcher.images.patches import grid_coordinates

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


def _qwen2_5_vl() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    vision = {**_QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1]}
    text = {**_TEXT, "rope_parameters": rope, "num_attention_heads": 2, "head_dim": 16}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return randomise(Qwen2_5_VLForConditionalGeneration(config))


def _qwen2_5_tiles(module: Any, grids: Sequence[Grid]) -> list[TowerTile]:
    """Windows of 2 x 2 tokens of 2 x 2 patches."""
    tiles = []
    for patches, coordinates, index, _, _ in _qwen_tiles(module, grids):
        tokens = coordinates[::4] // 2
        window = tokens // 2
        order = np.lexsort((tokens[:, 1], tokens[:, 0], window[:, 1], window[:, 0]))
        rows = (4 * order[:, None] + np.arange(4)).reshape(-1)
        _, starts = np.unique(window[order], axis=0, return_index=True)
        ends = [*np.sort(starts)[1:], len(order)]
        lengths = 4 * np.diff([0, *ends]).astype(np.int32)
        tiles.append((patches[rows], coordinates[rows], *no_table(len(index)), lengths))
    return tiles


def _qwen2_5_rows(
    module: Any, grids: Sequence[Grid], tiles: Sequence[TowerTile]
) -> NDArray[np.float32]:
    """The patches of the tiles are in the order of windows, those of transformers are not."""
    plain, orders = [], []
    for patches, coordinates, *_ in tiles:
        tokens = coordinates[::4] // 2
        order = np.lexsort((tokens[:, 1], tokens[:, 0]))
        plain.append(patches.reshape(len(tokens), 4, -1)[order].reshape(patches.shape))
        orders.append(order)
    pixels = torch.from_numpy(np.concatenate(plain))
    with torch.no_grad():
        found = module.model.visual(pixels, torch.tensor([(1, *grid) for grid in grids]))
    parts = np.split(found.pooler_output.numpy(), np.cumsum([len(order) for order in orders])[:-1])
    return np.concatenate(
        [part[np.argsort(order)] for part, order in zip(parts, orders, strict=True)]
    )


def _pixels_of(
    grid: Grid, patch: int, seed: int, merge: int, *, channels_first: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Return a random image (3, height, width), and its patches and their coordinates."""
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((3, grid[0] * patch, grid[1] * patch), np.float32)
    coordinates = grid_coordinates(*grid, merge)
    squares = image.reshape(3, grid[0], patch, grid[1], patch).transpose(1, 3, 0, 2, 4)
    if not channels_first:
        squares = squares.transpose(0, 1, 3, 4, 2)
    patches = squares[coordinates[:, 0], coordinates[:, 1]].reshape(len(coordinates), -1)
    return image, np.ascontiguousarray(patches), coordinates


def _idefics(config: Any, model: Any) -> nn.Module:
    text = {**_TEXT, "model_type": "llama", "rope_parameters": None, "pad_token_id": 0}
    vision = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "patch_size": 4,
        "image_size": 24,
    }
    made = config(text_config=text, vision_config=vision, scale_factor=2, pad_token_id=0)
    return randomise(model(made))


def _idefics_tiles(module: Any, grids: Sequence[Grid]) -> list[TowerTile]:
    tiles = []
    for seed, grid in enumerate(grids):
        _, patches, coordinates = _pixels_of(grid, 4, seed, 2)
        index = coordinates[:, :1] * 6 + coordinates[:, 1:]
        weight = np.ones(index.shape, np.float32)
        tiles.append((patches, coordinates, index, weight, no_windows()))
    return tiles


def _idefics_rows(
    module: Any, grids: Sequence[Grid], tiles: Sequence[TowerTile]
) -> NDArray[np.float32]:
    images = [_pixels_of(grid, 4, seed, 2)[0] for seed, grid in enumerate(grids)]
    with torch.no_grad():
        found = module.model.get_image_features(torch.from_numpy(np.stack(images))[None])
    return torch.cat(list(found.pooler_output)).numpy()


def _mistral3() -> nn.Module:
    text = {**_TEXT, "model_type": "mistral", "rope_parameters": {"rope_type": "default"}}
    vision = {
        "model_type": "pixtral",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "patch_size": 4,
        "image_size": 64,
    }
    config = Mistral3Config(text_config=text, vision_config=vision, multimodal_projector_bias=True)
    return randomise(Mistral3ForConditionalGeneration(config))


def _mistral3_tiles(module: Any, grids: Sequence[Grid]) -> list[TowerTile]:
    tiles = []
    for seed, grid in enumerate(grids):
        _, patches, coordinates = _pixels_of(grid, 4, seed, 2)
        tiles.append((patches, coordinates, *no_table(len(patches)), no_windows()))
    return tiles


def _mistral3_rows(
    module: Any, grids: Sequence[Grid], tiles: Sequence[TowerTile]
) -> NDArray[np.float32]:
    rows = []
    for seed, grid in enumerate(grids):
        image = torch.from_numpy(_pixels_of(grid, 4, seed, 2)[0])[None]
        sizes = torch.tensor([image.shape[-2:]])
        with torch.no_grad():
            found = module.model.get_image_features(image, sizes, output_hidden_states=True)
        rows.extend(found.pooler_output)
    return torch.cat(rows).numpy()


def _lfm2_vl() -> nn.Module:
    text = {
        **_TEXT,
        "model_type": "lfm2",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_attention_heads": 2,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    }
    vision = {
        "model_type": "siglip2_vision_model",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "patch_size": 4,
        "num_patches": 36,
        "vision_use_head": False,
    }
    config = Lfm2VlConfig(text_config=text, vision_config=vision, projector_hidden_size=56)
    return randomise(Lfm2VlForConditionalGeneration(config))


def _lfm2_vl_tiles(module: Any, grids: Sequence[Grid]) -> list[TowerTile]:
    tiles = []
    for seed, grid in enumerate(grids):
        _, patches, coordinates = _pixels_of(grid, 4, seed, 2, channels_first=False)
        axes = []
        for size in grid:  # the weights of an antialiased bilinear resizing of 6 to `size`
            centres = (np.arange(size) + 0.5) * 6 / size - 0.5
            weights = 1 - np.abs(np.arange(6) - centres[:, None]) / max(6 / size, 1)
            weights = np.maximum(weights, 0)
            axes.append(weights / weights.sum(1, keepdims=True))
        weight = np.einsum(
            "na,nb->nab", axes[0][coordinates[:, 0]], axes[1][coordinates[:, 1]]
        ).reshape(len(patches), 36)
        index = np.tile(np.arange(36, dtype=np.int32), (len(patches), 1))
        tiles.append((patches, coordinates, index, weight.astype(np.float32), no_windows()))
    return tiles


def _lfm2_vl_rows(
    module: Any, grids: Sequence[Grid], tiles: Sequence[TowerTile]
) -> NDArray[np.float32]:
    rows = []
    for grid, (patches, coordinates, *_) in zip(grids, tiles, strict=True):
        order = np.lexsort((coordinates[:, 1], coordinates[:, 0]))
        pixels = torch.from_numpy(patches[order])[None]
        mask = torch.ones(pixels.shape[:2], dtype=torch.int32)
        with torch.no_grad():
            found = module.model.get_image_features(pixels, torch.tensor([grid]), mask)
        rows.extend(found.pooler_output)
    return torch.cat(rows).numpy()


SQUARES: tuple[Grid, ...] = ((6, 6), (6, 6))
"""The tiles of Idefics have one size."""

CASES: dict[str, VisionCase] = {
    "qwen3_vl": VisionCase(make=_qwen3_vl, tiles=_qwen_tiles, rows=_qwen_rows),
    "qwen3_5": VisionCase(make=_qwen3_5, tiles=_qwen_tiles, rows=_qwen_rows),
    "qwen2_5_vl": VisionCase(make=_qwen2_5_vl, tiles=_qwen2_5_tiles, rows=_qwen2_5_rows),
    "idefics3": VisionCase(
        make=partial(_idefics, Idefics3Config, Idefics3ForConditionalGeneration),
        tiles=_idefics_tiles,
        rows=_idefics_rows,
        grids=SQUARES,
    ),
    "smolvlm": VisionCase(
        make=partial(_idefics, SmolVLMConfig, SmolVLMForConditionalGeneration),
        tiles=_idefics_tiles,
        rows=_idefics_rows,
        grids=SQUARES,
    ),
    "mistral3": VisionCase(make=_mistral3, tiles=_mistral3_tiles, rows=_mistral3_rows),
    "lfm2_vl": VisionCase(make=_lfm2_vl, tiles=_lfm2_vl_tiles, rows=_lfm2_vl_rows),
}
"""The cases by `model_type`."""
