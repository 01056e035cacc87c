"""The ids that llama.cpp's own test files say, for its fifteen vocabularies with such a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers

from pybatcher.loading.gguf.file import map_gguf
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer

FOLDER = Path(os.environ.get("PYBATCHER_VOCABULARIES", os.devnull))
ALL = sorted(FOLDER.glob("*/ggml-vocab-*.gguf"))
WITH_IDS = [path for path in ALL if path.with_name(f"{path.name}.out").exists()]


def read(path: Path) -> Tokenizer:
    fields = map_gguf(path).metadata
    backend = read_tokenizer(fields, len(fields.get("tokenizer.ggml.tokens"))).backend
    assert backend is not None
    return backend


def test_they_are_there() -> None:
    assert len(ALL) == 19
    assert len(WITH_IDS) == 15


@pytest.mark.parametrize("path", WITH_IDS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre is missing")
def test_ids(path: Path) -> None:
    tokenizer = read(path)
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode()
    ids = path.with_name(f"{path.name}.out").read_text()
    compared = 0
    for text, known in zip(texts.split("\n__ggml_vocab_test__\n"), ids.split("\n"), strict=False):
        # llama.cpp does not normalise texts; the tokenizer.json of such a model does.
        if tokenizer.normalizer is not None and normalizers.NFC().normalize_str(text) != text:
            continue
        assert tokenizer.encode(text, add_special_tokens=False).ids == [*map(int, known.split())]
        compared += 1
    assert compared >= 46


@pytest.mark.parametrize("path", sorted({*ALL} - {*WITH_IDS}), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre is missing")
def test_texts_come_back(path: Path) -> None:
    tokenizer = read(path)
    for text in ("Hello, world! It's 2024.", "a b c", "camelCase  and   spaces"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        written = tokenizer.decode(ids)
        assert written.split() == text.split()
