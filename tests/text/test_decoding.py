"""Each stage against the decoder of the library that it is the streaming form of."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders

from pybatcher.text.decoding import build_stages

# Spellings with a meaning to one decoder or another, and any text beside them.
SPELLINGS = ["▁", "▁the", "a▁▁b", " ", "  x", "Ġ", "Ġa", "â", "Ċ", "日", "", "�"]
SPELLINGS += ["<0xE2>", "<0x41>", "<0xe4>", "<0xFF>", "<0x+4>", "<0x+a>", "<0x123>", "<0xG1>"]
tokens = st.lists(st.sampled_from(SPELLINGS) | st.text(max_size=4), max_size=12)

DECODERS = {
    "byte level": decoders.ByteLevel(),
    "llama": decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    "byte fallback": decoders.ByteFallback(),
    "replace": decoders.Replace("▁", "__"),
    "strip three": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 3, 0)]),
    "byte level and strip": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    "metaspace always": decoders.Metaspace(prepend_scheme="always"),
    "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "fuse": decoders.Fuse(),
}


def settings_of(decoder: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(decoder.__getstate__())
    return loaded


def stream(decoder: dict[str, Any] | None, pieces: list[str], *, at_start: bool = True) -> str:
    stages = build_stages(decoder, at_start=at_start)
    assert stages is not None
    fed: list[list[str]] = [[piece] for piece in pieces]
    for stage in stages:
        fed = [[out for piece in batch for out in stage.push(piece)] for batch in fed]
        fed.append(stage.flush())
    return "".join(piece for batch in fed for piece in batch)


@settings(deadline=None)
@given(st.sampled_from(sorted(DECODERS)), tokens)
def test_a_stage_at_a_time_is_the_whole_at_once(name: str, pieces: list[str]) -> None:
    decoder = DECODERS[name]
    assert stream(settings_of(decoder), pieces) == decoder.decode(pieces)


@pytest.mark.parametrize("name", DECODERS)
def test_every_spelling_after_every_other(name: str) -> None:
    decoder = DECODERS[name]
    for pieces in product(SPELLINGS, SPELLINGS):
        assert stream(settings_of(decoder), list(pieces)) == decoder.decode(list(pieces)), pieces


def test_without_a_decoder_tokens_are_words() -> None:
    assert stream(None, ["a", "b", ""]) == "a b "
    assert stream(None, ["a", "b"], at_start=False) == " a b"


@pytest.mark.parametrize(
    ("name", "kept"),
    [("llama", " the fox"), ("metaspace always", " the fox"), ("metaspace never", " the fox")],
)
def test_in_the_middle_of_a_text_the_first_space_is_kept(name: str, kept: str) -> None:
    assert stream(settings_of(DECODERS[name]), ["▁the", "▁fox"], at_start=False) == kept


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Replace(Regex("▁+"), " "),
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
    ],
)
def test_what_has_no_streaming_form_is_known_not_to(decoder: Any) -> None:
    assert build_stages(settings_of(decoder), at_start=True) is None
