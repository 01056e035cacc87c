"""What msgpack can have, streams of it cut anywhere, and what msgpack itself reads in one."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
_KEYS = st.text(max_size=8) | st.integers(-40, 70000)

VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda below: st.lists(below, max_size=5) | st.dictionaries(_KEYS, below, max_size=4),
    max_leaves=12,
)
PARAMS = st.lists(VALUES, max_size=4)


def cut(data: bytes, draw: Any) -> list[bytes]:
    """`data` in pieces, some of them empty. `draw`: of hypothesis' data()."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def depth_of(value: Any) -> int:
    """Containers within each other."""
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list):
        return 0
    return 1 + max(map(depth_of, value), default=0)


def frames_in(data: bytes) -> list[Any]:
    """All that is in `data`, read by msgpack itself."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    return list(unpacker)
