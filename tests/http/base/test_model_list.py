from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.model_list import ModelList
from pybatcher.testing import fake_batcher


async def test_models_are_found_by_their_names() -> None:
    async with fake_batcher() as one, fake_batcher() as two:
        alone, several = ModelList(one), ModelList({"a": one, "b": two})
        for name in (None, "", "fake"):
            assert alone.find(name) == ("fake", one)
        assert several.find("b") == ("b", two)
        assert several.find(None) == ("a", one)
        for name in ("c", 5, ["a"], {"a": 1}):
            with pytest.raises(
                HttpError, match="which is not served here; there is: a, b"
            ) as raised:
                several.find(name)
            assert raised.value.status == 404


@pytest.mark.parametrize("batchers", [None, 5, {}, {"a": 5}, {5: None}, "model"])
def test_what_is_no_batcher(batchers: Any) -> None:
    with pytest.raises(ConfigError, match="batchers"):
        ModelList(batchers)
