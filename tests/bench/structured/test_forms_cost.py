from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers import Tokenizer

from bench.convert.make_checkpoint import END_TOKEN
from bench.structured import forms as tool
from pybatcher.models import tiny_path


async def test_all_is_measured_on_the_shipped_model() -> None:
    asked = argparse.Namespace(dtype="f32", threads=1, streams=4, tokens=8, rounds=1)
    found = await tool.measure(tiny_path(), asked)
    assert min(found["plain_tokens_per_s"], found["throughput_ratio"]) > 0
    assert found["fixed_keys_ratio"] > 0
    assert "first_token_later_ms" in found


def test_the_large_tokenizer_has_all_its_tokens(tmp_path: Path) -> None:
    tool.write_large_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == tool.VOCAB
    assert tokenizer.token_to_id(END_TOKEN) == tool.VOCAB - 1
    assert tokenizer.decode(tokenizer.encode("any text: ä").ids) == "any text: ä"
