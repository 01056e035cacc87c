"""What callers are told of kept prefixes, and what a prefix may be called."""

from __future__ import annotations

import pytest

from pybatcher import InvalidRequestError, PrefixInfo
from pybatcher.calls.prefix_info import Prefixes, check_prefix_name

ONE = PrefixInfo(name="manual", namespace=None, n_tokens=5, computed_tokens=5, holders=1)


async def test_prefixes_are_a_tuple_that_may_be_awaited() -> None:
    prefixes = Prefixes([ONE])
    assert prefixes == (ONE,)
    assert isinstance(prefixes, tuple)
    assert await prefixes is prefixes


def test_a_name_is_a_text_with_something_in_it() -> None:
    assert check_prefix_name("manual") == "manual"
    for name in ("", 3, None, b"manual"):
        with pytest.raises(InvalidRequestError, match=r"name is .*at least one character"):
            check_prefix_name(name)
