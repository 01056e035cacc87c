from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.http.middleware.api_keys import ApiKeys


def test_each_key_is_a_namespace_that_does_not_tell_it() -> None:
    keys = ApiKeys(["one", "two"])
    first = keys.namespace_of("one")
    assert first is not None
    assert "one" not in first
    assert keys.namespace_of("two") not in (None, first)
    assert [keys.namespace_of(text) for text in ("", "on", "ones", "ä\ud800")] == [None] * 4
    keys.replace(["two", "three"])
    assert keys.are_asked_for
    assert keys.namespace_of("one") is None
    keys.replace(None)
    assert not keys.are_asked_for


@pytest.mark.parametrize("keys", [[], "secret", b"secret", [""], [5], ["ä"]])
def test_keys_that_are_none(keys: Any) -> None:
    known = ApiKeys(["one"])
    with pytest.raises(ConfigError, match="api_keys"):
        known.replace(keys)
    assert known.namespace_of("one")
