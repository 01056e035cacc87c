"""The functions of torchvision that processors of transformers call, from torch.

The builds of torchvision on PyPI need a torch with CUDA. `resize` and `normalize` of torchvision
are these functions of torch, for images of bytes on a CPU with AVX2 or better.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest


class InterpolationMode:
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def resize(image: Any, size: Any, interpolation: str, antialias: bool) -> Any:
    import torch

    return torch.nn.functional.interpolate(
        image, tuple(size), mode=interpolation, antialias=antialias
    )


def normalize(image: Any, mean: Any, std: Any, inplace: bool) -> Any:
    return image.sub(mean[:, None, None]).div(std[:, None, None])


def module_with_torchvision(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of transformers that imports torchvision."""
    backends = importlib.import_module("transformers.image_processing_backends")
    functional = ModuleType("torchvision.transforms.v2.functional")
    functional.__dict__.update(
        InterpolationMode=InterpolationMode, resize=resize, normalize=normalize
    )
    parent = ModuleType("torchvision.transforms.v2")
    parent.functional = functional  # type: ignore[attr-defined]
    for module in (ModuleType("torchvision"), ModuleType("torchvision.transforms"), parent):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(backends, "tvF", functional, raising=False)
    names = {2: InterpolationMode.BILINEAR, 3: InterpolationMode.BICUBIC}
    monkeypatch.setattr(backends, "pil_torch_interpolation_mapping", names)
    return importlib.import_module(name)
