"""Upper limits of the sizes in a model's configuration, far above those of any real model.

None is above the compiled engine's own (csrc/config/config.cc), which does not know the file.
"""

from __future__ import annotations

__all__ = [
    "MAX_CONV_SIZE",
    "MAX_HEADS",
    "MAX_HEAD_DIM",
    "MAX_LAYERS",
    "MAX_POSITIONS",
    "MAX_VOCABULARY",
    "MAX_WIDTH",
]

MAX_VOCABULARY = 2**24
MAX_WIDTH = 2**20
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_POSITIONS = 2**30
MAX_CONV_SIZE = 64
