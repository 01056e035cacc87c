"""The description of a model over the wire."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import ANYTHING, COUNTS, TEXTS, over_the_wire

from pybatcher.calls.model_info import ModelInfo
from pybatcher.errors import ProtocolError
from pybatcher.sidecar.protocol.wire_model_info import model_info_from_wire, model_info_to_wire

INFOS = st.builds(
    ModelInfo,
    name=TEXTS,
    fingerprint=TEXTS,
    max_sequence_length=COUNTS,
    vocab_size=COUNTS,
    kv_block_size=COUNTS,
    special_tokens=st.dictionaries(TEXTS, TEXTS, max_size=3),
    chat_template=st.none() | TEXTS,
    sampling=st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=3),
    takes_tools=st.booleans(),
    takes_thinking=st.booleans(),
    takes_images=st.booleans(),
    max_images=COUNTS,
    max_image_pixels=COUNTS,
    max_image_bytes=COUNTS,
)
SENT = model_info_to_wire(
    ModelInfo(name="a", fingerprint="b", max_sequence_length=3, vocab_size=4, kv_block_size=5)
)


@given(INFOS)
def test_it_equals_the_one_that_was_sent(info: ModelInfo) -> None:
    sent = over_the_wire(model_info_to_wire(info))
    assert model_info_from_wire({**sent, "something_new": 5}) == info


def test_a_sidecar_that_does_not_know_what_the_template_takes() -> None:
    older = {name: SENT[name] for name in SENT if not name.startswith(("takes_", "max_image"))}
    assert not model_info_from_wire(older).takes_tools
    assert not model_info_from_wire(older).takes_thinking
    assert not model_info_from_wire(older).takes_images
    assert model_info_from_wire(older).max_images == 0
    for name in ("takes_tools", "takes_thinking", "takes_images"):
        for odd in (None, 1, "true", []):
            with pytest.raises(ProtocolError, match=name):
                model_info_from_wire({**SENT, name: odd})


@given(ANYTHING)
def test_anything_else_is_a_typed_error(wire: Any) -> None:
    with suppress(ProtocolError):
        model_info_from_wire(wire)


@pytest.mark.parametrize(
    "name", ["name", "fingerprint", "max_sequence_length", "vocab_size", "kv_block_size"]
)
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        model_info_from_wire({**SENT, name: None})
