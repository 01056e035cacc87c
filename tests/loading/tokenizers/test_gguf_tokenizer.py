"""The oracles are the tokenizer.json that a GGUF was made from, and transformers' reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from gguf_tokenizers import NORMAL, as_keys, read, spm_keys, trained
from hostile_texts import hostile_texts
from tokenizers import normalizers

from pybatcher.errors import ModelFormatError
from pybatcher.loading import TokenizerParts
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.gguf.file import map_gguf
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer
from pybatcher.testing.checkpoints import make_checkpoint
from pybatcher.text import Detokenizer
from pybatcher.text import Tokenizer as TextTokenizer

# -- byte-level ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2", "smollm"])
def test_byte_level(name: str) -> None:
    known = trained(name)
    made = read({**as_keys(known, name), "ggml.add_bos_token": False}).backend
    assert made is not None
    for text in hostile_texts():
        ids = known.encode(text).ids
        assert made.encode(text).ids == ids, text
        for skip in (True, False):
            decoded = known.decode(ids, skip_special_tokens=skip)
            assert made.decode(ids, skip_special_tokens=skip) == decoded


@pytest.mark.parametrize(("name", "n_tokens"), [("llama-bpe", 1), ("qwen2", 6)])
def test_a_token_that_no_merges_make(name: str, n_tokens: int) -> None:
    keys = as_keys(trained(name), name)
    keys["ggml.tokens"][-1], keys["ggml.token_type"][-1] = "Ġxyzzyx", NORMAL
    made = read({**keys, "ggml.add_bos_token": False}).backend
    assert made is not None
    assert len(made.encode(" xyzzyx").ids) == n_tokens


def test_unused_ids_have_no_token() -> None:
    keys = as_keys(trained("gpt-2"), "gpt-2")
    assert keys["ggml.tokens"][-1] == "[PAD599]"
    made = read(keys).backend
    assert made is not None
    assert made.id_to_token(599) is None
    assert made.token_to_id("[PAD599]") is None


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2"])
def test_of_transformers_own_reader(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = make_checkpoint(tmp_path / "hf", "llama")
    path = write_gguf(directory, tmp_path / "model.gguf", pre=name)
    try:
        known = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    except (ImportError, ValueError) as error:  # an older one, or one that wants more installed
        pytest.skip(f"transformers cannot read it: {error}")
    file = map_gguf(path)
    made = read_tokenizer(file.metadata, 384).backend
    assert made is not None
    for text in hostile_texts():
        if name == "qwen2" and normalizers.NFC().normalize_str(text) != text:
            continue  # the models' own tokenizer.json says NFC, and theirs from a GGUF does not
        assert made.encode(text, add_special_tokens=False).ids == known.encode(
            text, add_special_tokens=False
        ), text


def test_pieces_as_they_come() -> None:
    parts = read(as_keys(trained("qwen2"), "qwen2"))
    tokenizer = TextTokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)
    for text in hostile_texts(100):
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        pieces = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert pieces == tokenizer.decode(ids, skip_special_tokens=False)


# -- tokens around a text --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_eos_token": True, "add_bos_token": False}, [], [2]),
        ({"bos_token_id": None}, [], []),
        ({"bos_token_id": -1}, [], []),
        ({"bos_token_id": 2**32 - 1}, [], []),
    ],
)
def test_bos_and_eos(keys: dict[str, Any], before: list[int], after: list[int]) -> None:
    parts = read(spm_keys(**keys))
    assert parts.backend is not None
    bare = parts.backend.encode("the fox", add_special_tokens=False).ids
    assert parts.backend.encode("the fox").ids == [*before, *bare, *after]
    assert parts.bos_token_id == (None if "bos_token_id" in keys else 1)


@pytest.mark.parametrize(("name", "adds"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_where_only_the_kind_tells(name: str, adds: bool) -> None:
    parts = read(as_keys(trained(name), name))
    assert parts.backend is not None
    assert (parts.backend.encode("x").ids[0] == parts.bos_token_id) == adds


def test_ends() -> None:
    """EOS, the ends of turn and message that the file names, and well-known end tokens."""
    keys = as_keys(trained("qwen2"), "qwen2")
    tokens: list[str] = keys["ggml.tokens"]
    parts = read({**keys, "ggml.eos_token_id": 7, "ggml.eot_token_id": 8, "ggml.eom_token_id": 9})
    assert parts.eos_token_ids == {7, 8, 9, tokens.index("<|im_end|>")}
    keys["ggml.token_type"][tokens.index("<|im_end|>")] = NORMAL
    assert read({**keys, "ggml.eos_token_id": 7}).eos_token_ids == {7}


def test_ends_of_gpt_oss() -> None:
    """<|end|> ends a message, not an output, where <|return|> and <|call|> do."""
    keys = as_keys(trained("gpt-2"), "gpt-4o")
    tokens: list[str] = keys["ggml.tokens"]
    places = [tokens.index(name) for name in ("<|begin|>", "<|im_start|>", "<|im_end|>")]
    for place, name in zip(places, ("<|end|>", "<|return|>", "<|call|>"), strict=True):
        tokens[place] = name
    ends = {"ggml.eos_token_id": places[1]}
    assert read({**keys, **ends}).eos_token_ids == set(places[1:])
    tokens[places[2]] = "<|other|>"
    assert read({**keys, **ends}).eos_token_ids == set(places[:2])


@pytest.mark.parametrize(
    ("name", "taken"), [("Phi-3-mini", True), ("phi3", True), ("Llama", False)]
)
def test_spaces_after_special_tokens_of_phi_3(name: str, taken: bool) -> None:
    keys = {**spm_keys(add_bos_token=False), "general.name": name}
    fields = {key if key == "general.name" else f"tokenizer.{key}": v for key, v in keys.items()}
    made = read_tokenizer(Fields(fields, "model.gguf"), 600).backend
    assert made is not None
    assert (made.encode("</s> \n ").ids == [2]) is taken
    assert len(made.encode("<s> \n ").ids) > 1


def test_special_tokens_and_template() -> None:
    templates = {"chat_template": "{{ bos_token }}", "chat_template.tool_use": "{{ tools }}"}
    parts = read({**spm_keys(padding_token_id=5), **templates})
    assert parts.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<0x02>",
    }
    assert (parts.chat_template, parts.tool_template) == ("{{ bos_token }}", "{{ tools }}")


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_no_tokenizer(model: str | None) -> None:
    parts = read({"ggml.model": model, "ggml.eos_token_id": 3, "ggml.bos_token_id": 599})
    assert parts.backend is None
    assert parts.eos_token_ids == {3}
    assert parts.bos_token_id == 599
    assert parts.special_tokens == {}


def test_no_name_for_the_words() -> None:
    keys = as_keys(trained("gpt-2"), "gpt-2")
    with pytest.warns(UserWarning, match=r"model\.gguf: tokenizer\.ggml\.pre is missing"):
        made = read({**keys, "ggml.pre": None}).backend
    assert made is not None
    assert made.decode(made.encode("a 1234567 b").ids) == "a 1234567 b"


# -- a tokenizer.json beside the file --------------------------------------------------------


def beside(tmp_path: Path, **changes: Any) -> TokenizerParts:
    """Read a tokenizer, with the tokenizer.json that it was made from beside it."""
    known = trained("qwen2")
    known.save(str(tmp_path / "tokenizer.json"))
    keys = {**as_keys(known, "qwen2"), **{f"ggml.{key}": v for key, v in changes.items()}}
    fields = {f"tokenizer.{key}": value for key, value in keys.items()}
    return read_tokenizer(Fields(fields, "model.gguf"), 600, tmp_path)


@pytest.mark.parametrize("changes", [{"pre": "martian"}, {"model": "rwkv"}])
def test_stands_in_for_what_is_unknown(changes: dict[str, Any], tmp_path: Path) -> None:
    parts = beside(tmp_path, **changes)
    assert parts.backend is not None
    for text in hostile_texts(50):
        assert parts.backend.encode(text).ids == trained("qwen2").encode(text).ids
    assert parts.eos_token_ids == {trained("qwen2").token_to_id("<|im_end|>")}


def test_does_not_count_where_the_file_says_enough(tmp_path: Path) -> None:
    made = beside(tmp_path, pre="gpt-2").backend
    assert made is not None
    assert made.normalizer is None


def test_of_another_model(tmp_path: Path) -> None:
    tokens = as_keys(trained("qwen2"), "qwen2")["ggml.tokens"]
    tokens[7], tokens[8] = tokens[8], tokens[7]
    with pytest.raises(
        ModelFormatError, match=r"tokenizer\.json: .* has the id 8; expected 7, as in"
    ):
        beside(tmp_path, pre="martian", tokens=tokens)


def test_damaged(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    keys = {**as_keys(trained("gpt-2"), "martian")}
    fields = {f"tokenizer.{key}": value for key, value in keys.items()}
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: not a valid tokenizer"):
        read_tokenizer(Fields(fields, "model.gguf"), 600, tmp_path)


# -- damage ----------------------------------------------------------------------------------

GPT2 = as_keys(trained("gpt-2"), "gpt-2")
TOKENS: list[str] = GPT2["ggml.tokens"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"model": "rwkv"}, "ggml.model is 'rwkv'; expected a type of tokenizer that"),
    "a kind that is no text": ({"model": 3}, "ggml.model is 3; expected a text"),
    "no tokens": ({"tokens": None}, "ggml.tokens is missing; expected an array of texts"),
    "tokens of numbers": ({"tokens": np.arange(3)}, "expected an array of texts"),
    "empty": ({"tokens": []}, "has 0 elements; expected 1 to 600"),
    "too many": ({"tokens": ["a"] * 601}, "has 601 elements; expected 1 to 600"),
    "a token twice": ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "at 5 and at 599"),
    "too few kinds": ({"token_type": np.ones(5, int)}, "expected an array of 600 whole numbers"),
    "kinds of texts": ({"token_type": ["a"] * 600}, "expected an array of 600 whole numbers"),
    "unknown words": (
        {"pre": "martian"},
        "ggml.pre is 'martian'; expected a pre-tokenizer that is known",
    ),
    "no merges": ({"merges": None}, "ggml.merges is missing"),
    "a merge of one": ({"merges": ["ab"]}, "ggml.merges, element 0, is 'ab'"),
    "a merge of strangers": ({"merges": ["\u4e00 \u4e01"]}, "not a valid tokenizer: .*vocabulary"),
    "BOS out of range": ({"bos_token_id": 600}, "bos_token_id is 600; expected a whole number fr"),
    "a text for EOS": ({"eos_token_id": "x"}, "eos_token_id is 'x'; expected a whole number"),
    "BOS that is not there": (
        {"bos_token_id": None, "add_bos_token": True},
        "add_bos_token is True; expected false, as there is no tokenizer.ggml.bos_token_id",
    ),
    "a number for a truth value": ({"add_bos_token": 1}, "add_bos_token is 1; expected true or"),
    "megabytes of special tokens": (
        {
            "tokens": ["x" * 2**23],
            "token_type": np.array([3]),
            "merges": [],
            "add_bos_token": False,
        },
        "has 8388608 characters in special and user-defined tokens; expected at most 4194304",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changes, message = REFUSED[name]
    keys = {**GPT2, **{f"ggml.{key}": value for key, value in changes.items()}}
    if name == "a token twice":
        keys["ggml.token_type"] = np.ones(600, int)
    with pytest.raises(ModelFormatError, match=message) as caught:
        read(keys)
    assert str(caught.value).startswith("model.gguf: tokenizer.")
    assert len(str(caught.value)) < 1000


def test_a_template_without_end() -> None:
    for name in ("chat_template", "chat_template.tool_use"):
        with pytest.raises(ModelFormatError, match=f"{name} has 1048577 characters"):
            read({"ggml.model": "none", name: "x" * (2**20 + 1)})
