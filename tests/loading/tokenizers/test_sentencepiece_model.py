"""Oracles: transformers, which builds a tokenizer of a tokenizer.model, and SentencePiece itself.

transformers takes the model's settings as they are for `internlm3` alone.
"""

from __future__ import annotations

import io
import json
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizer_settings import added_token
from transformers import AutoTokenizer

from pybatcher.errors import ModelFormatError
from pybatcher.loading import TokenizerParts
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.sentencepiece_model import read_sentencepiece
from pybatcher.loading.tokenizers.tokenizer_files import read_tokenizer
from pybatcher.text import Detokenizer, Tokenizer

WORDS = "the fox jumps over a lazy dog night day model über naïve 日本 語 1234 World's".split()  # noqa: SIM905
PIECES = "the fox over <|user|> [CTL] </s> <unk> <0x41> [NEW] [LATE] ü 日 ﬁ ① 🦊 ▁ '".split()  # noqa: SIM905
PIECES += [" ", "  ", "\n", "\t"]


@cache
def trained(
    kind: str = "bpe",
    *,
    byte_fallback: bool = True,
    removes_spaces: bool = False,
    adds_prefix: bool = True,
    rule: str = "identity",
) -> bytes:
    rng = random.Random(1)
    lines = [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(2000)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=380 if byte_fallback else 120,
        model_type=kind,
        byte_fallback=byte_fallback,
        user_defined_symbols=["<|user|>"],
        control_symbols=["[CTL]", "[UNUSED]"],
        normalization_rule_name=rule,
        remove_extra_whitespaces=removes_spaces,
        add_dummy_prefix=adds_prefix,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def texts(n: int = 60) -> list[str]:
    rng = random.Random(2)
    random_ones = ["".join(rng.choices(PIECES, k=rng.randrange(1, 15))) for _ in range(n)]
    return ["", " ", "  ", " the", "▁the fox ▁", "the fox  jumps\n over", *random_ones]


def write(directory: Path, model: bytes, settings: dict[str, Any]) -> Path:
    (directory / "tokenizer.model").write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text('{"model_type": "internlm3"}')
    return directory


def read(directory: Path) -> TokenizerParts:
    parts = read_tokenizer(directory, Fields({}, "config.json"))
    assert parts.backend is not None
    return parts


def agrees_with_transformers(directory: Path) -> TokenizerParts:
    parts, theirs = read(directory), AutoTokenizer.from_pretrained(directory)
    tokenizer = Tokenizer(parts.backend)
    for text in texts():
        ids = tokenizer.encode(text)
        assert ids == theirs(text)["input_ids"], text
        decoded = theirs.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids) == decoded, text
        detokenizer = Detokenizer(tokenizer)
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == decoded, text
    return parts


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": False},
        {"removes_spaces": True},
        {"adds_prefix": False},
        {"adds_prefix": False, "byte_fallback": False},
        {"rule": "nmt_nfkc", "removes_spaces": True},
    ],
    ids=str,
)
def test_ids_and_texts_are_those_of_transformers(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = trained(kind, **options)
    for settings in ({}, {"legacy": False}, {"add_bos_token": True, "add_eos_token": True}):
        agrees_with_transformers(write(tmp_path, model, settings))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_ids_are_those_of_sentencepiece(kind: str, tmp_path: Path) -> None:
    model = trained(kind, rule="nmt_nfkc", removes_spaces=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    backend = read(write(tmp_path, model, {})).backend
    assert backend is not None
    ours_alone = {"[CTL]", "</s>", "<unk>", "<0x41>"}  # texts to SentencePiece
    for text in texts(200):
        if not any(token in text for token in ours_alone):
            assert backend.encode(text).ids == theirs.encode(text), text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf"])
def test_combining_marks_are_those_of_sentencepiece(kind: str, rule: str, tmp_path: Path) -> None:
    model = trained(kind, rule=rule, removes_spaces=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = Tokenizer(read(write(tmp_path, model, {})).backend)
    for text in ("a\u0302\u0323", "E\u0301", "ｶﾞ", "<|user|>\u0301ﬁ", "the e\u0301\u0327"):
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text), text
        assert "\u0301" not in text or tokenizer.decode(ids) == theirs.decode(ids)
    assert tokenizer.longest_token > 0
    assert json.loads(tokenizer.definition or "")["model"]["vocab"]


def test_added_tokens_take_the_places_of_pieces_or_follow_them(tmp_path: Path) -> None:
    model = trained()
    unused = read_sentencepiece(model, "x").pieces.index("[UNUSED]")
    size = len(read_sentencepiece(model, "x").pieces)
    tokens = {
        str(size): added_token("[LATE]", normalized=True, rstrip=True),
        str(unused): added_token("[NEW]", special=True),
    }
    parts = agrees_with_transformers(write(tmp_path, model, {"added_tokens_decoder": tokens}))
    assert parts.backend is not None
    assert parts.backend.token_to_id("[NEW]") == unused
    assert parts.backend.token_to_id("[LATE]") == size
    assert parts.backend.token_to_id("[UNUSED]") is None


def test_llama_adds_a_space_to_the_text_alone(tmp_path: Path) -> None:
    write(tmp_path, trained(), {"tokenizer_class": "LlamaTokenizer"})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    backend = read(tmp_path).backend
    assert backend is not None
    for text in ("the fox", "the</s>fox", "</s>  fox", "the [CTL]fox\n"):
        assert backend.encode(text).ids == theirs(text)["input_ids"]


def test_special_tokens_are_those_of_the_model_unless_the_settings_name_others(
    tmp_path: Path,
) -> None:
    parts = read(write(tmp_path, trained(), {"eos_token": "[CTL]"}))
    assert parts.special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "[CTL]"}
    assert (parts.bos_token_id, parts.eos_token_ids) == (1, {3})


def test_tokenizer_json_counts_before_it(tmp_path: Path, llama: Path) -> None:
    write(llama, b"damaged", {})
    backend = read(llama).backend
    assert backend is not None
    assert backend.token_to_id("<|im_start|>") == 2


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def piece(text: str = "a", *more: tuple[int, int | float | str | bytes]) -> tuple[int, bytes]:
    return 1, message((1, text), *more)


def test_fields_that_are_absent_or_there_twice_or_unknown() -> None:
    pieces = [piece(t, (2, 0.5), (2, -1.5), (77, 3), (78, b"x"), (79, 0.0)) for t in "abc"]
    model = read_sentencepiece(message(*pieces, (2, message((41, -1)))), "x")
    assert model.pieces == ["a", "b", "c"]
    assert (model.scores, model.kinds) == ([-1.5] * 3, [1] * 3)
    assert model.special_tokens == {"unk_token": "a", "eos_token": "c"}
    assert not model.is_bpe
    assert model.adds_prefix
    assert model.removes_spaces


@pytest.mark.parametrize(("kind", "ids"), [(1, [3]), (5, [1, 2])])
def test_pieces_that_are_not_normal_are_no_merges(
    kind: int, ids: list[int], tmp_path: Path
) -> None:
    pieces = [piece("<unk>", (3, 2)), piece("a"), piece("b", (2, -1.0)), piece("ab", (3, kind))]
    trainer = (2, message((3, 2), (41, -1), (42, -1)))  # BPE without BOS and EOS
    plain = (3, message((3, 0)))  # no prefix
    backend = read(write(tmp_path, message(*pieces, trainer, plain), {})).backend
    assert backend is not None
    assert backend.encode("ab").ids == ids


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it has 0 pieces; expected 1 to 1048576"),
        (b"\x0a" * 5, "it ends 7 bytes before a field does"),
        (b"\x0a", "it ends within a number"),
        (b"\xff" * 20, "byte 10 ends a number of more than 64 bits"),
        (b"\x0b", "byte 1 begins a field of type 3"),
        (b"\x0d\0\0", "it ends 2 bytes before"),
        pytest.param(
            b"\x0a\0" * (2**20 + 1), "it has 1048577 pieces", marks=pytest.mark.slow, id="too many"
        ),
        (message((1, 5)), "a piece is 5; expected bytes"),
        (message((1, message((1, 5)))), "a text is 5; expected bytes"),
        (message((1, message((1, b"\xff")))), r"the text b'\\xff' is not UTF-8"),
        (message(piece("x" * 257)), "a piece has 257 characters; expected at most 256"),
        (message(piece("a"), piece("b"), piece("a")), "the piece 'a' is there 2 times"),
        (message(piece("a", (2, float("nan")))), "the score .* of a piece is not a finite number"),
        (message(piece("a", (2, float("inf")))), "the score .* of a piece is not a finite number"),
        (message(piece("a", (2, 5))), "the score 5 of a piece is not a finite number"),
        (message(piece("a", (2, b"123456"))), "the score b'123456' of a piece"),
        (message(piece("a", (3, b"x"))), "field 3 is b'x'; expected a whole number"),
        (message(piece(), (2, message((3, 3)))), "its model_type is 3; expected 1"),
        (message(piece(), (2, message((40, 1)))), "its unk_id is 1; expected one of 1 pieces"),
        (message(piece(), (2, message((40, -1)))), "its unk_id is -1"),
        (message(piece(), (2, message((24, 1)))), "its treat_whitespace_as_suffix is true; expe"),
        (message(piece(), (2, 7)), "field 2 is 7; expected bytes"),
        (message(piece(), (3, message((2, 7)))), "precompiled_charsmap is 7; expected bytes"),
    ],
)
def test_damaged_models(data: bytes, said: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^a file: not a valid SentencePiece model: {said}"):
        read_sentencepiece(data, "a file")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_random_damage_is_a_clear_error_or_harmless(kind: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    whole = trained(kind)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        try:
            parts = read(write(tmp_path, bytes(data), {}))
            tokenizer = Tokenizer(parts.backend)
            tokenizer.decode(tokenizer.encode("the fox ü 🦊 <|user|>x"))
        except ModelFormatError:
            continue


def test_a_damaged_charsmap(tmp_path: Path) -> None:
    data = message(piece("a"), (3, message((2, b"damaged"))))
    with pytest.raises(ModelFormatError, match=r"tokenizer.model: not a valid tokenizer: "):
        read(write(tmp_path, data, {}))


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    write(tmp_path, b"", {})
    with (tmp_path / "tokenizer.model").open("r+b") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(ModelFormatError, match="16777217 bytes; expected at most 16777216"):
        read(tmp_path)
