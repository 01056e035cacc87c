from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ConfigError
from pybatcher.images import ImageLimits

ODD: list[Any] = [None, -1, 2**31, 1.5, float("nan"), True, "16", b"1", [], object()]
OPTIONS = {
    "max_images": "max_images",
    "max_pixels": "max_image_pixels",
    "max_bytes": "max_image_bytes",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_odd_values_name_the_option(name: str) -> None:
    for value in ODD:
        with pytest.raises(ConfigError, match=f"^{OPTIONS[name]} is ") as caught:
            ImageLimits(**{name: value})
        assert caught.value.field == OPTIONS[name]


def test_no_images_is_a_limit_and_no_pixels_is_none() -> None:
    assert ImageLimits(max_images=0).max_images == 0
    for name in ("max_pixels", "max_bytes"):
        with pytest.raises(ConfigError, match="is 0; it must be a whole number from 1 to"):
            ImageLimits(**{name: 0})


def test_numbers_of_numpy_become_plain() -> None:
    assert type(ImageLimits(max_pixels=np.int64(5)).max_pixels) is int  # type: ignore[arg-type]
