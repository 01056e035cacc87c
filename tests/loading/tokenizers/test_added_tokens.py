from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizer_settings import added_token
from transformers import AutoTokenizer

from pybatcher.errors import ModelFormatError
from pybatcher.loading import TokenizerParts
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.tokenizer_files import read_tokenizer
from pybatcher.params import OF_MODELS

Edit = Callable[..., None]
TEXT = "the fox <|end|>  \n fox<|think|> The <|end|> cat <|other|>\n fox<|end|>fox"


def read(directory: Path) -> TokenizerParts:
    return read_tokenizer(directory, Fields({}, "config.json"))


def test_named_special_tokens_are_special_whatever_the_file_says(llama: Path, edit: Edit) -> None:
    stored = json.loads((llama / "tokenizer.json").read_text())["added_tokens"]
    edit(llama / "tokenizer.json", added_tokens=[{**t, "special": False} for t in stored])
    edit(llama / "tokenizer_config.json", pad_token="<|no such token|>")
    parts = read(llama)
    assert parts.backend is not None
    ids = parts.backend.encode("the fox<|end|>").ids
    assert parts.backend.decode(ids) == AutoTokenizer.from_pretrained(llama).decode(
        ids, skip_special_tokens=True
    )
    assert parts.backend.get_vocab_size() == 384


def agrees_with_transformers(directory: Path, text: str = TEXT) -> TokenizerParts:
    parts = read(directory)
    theirs = AutoTokenizer.from_pretrained(directory)
    assert parts.backend is not None
    ids = parts.backend.encode(text).ids
    assert ids == theirs(text)["input_ids"]
    assert parts.backend.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    return parts


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_named_special_tokens_keep_their_flags(flag: str, llama: Path, edit: Edit) -> None:
    stored = json.loads((llama / "tokenizer.json").read_text())["added_tokens"]
    edit(llama / "tokenizer.json", added_tokens=[{**t, flag: not t[flag]} for t in stored])
    agrees_with_transformers(llama)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_flags_in_the_settings_count_before_those_in_the_tokenizer(
    flag: str, llama: Path, edit: Edit
) -> None:
    parts = read(llama)
    assert parts.backend is not None
    end = parts.backend.token_to_id("<|end|>")
    ids = parts.backend.encode(TEXT).ids
    tokens = {str(end): added_token("<|end|>", **{flag: True})}
    edit(llama / "tokenizer_config.json", added_tokens_decoder=tokens)
    parts = agrees_with_transformers(llama)
    assert parts.backend is not None
    changes_nothing = flag == "normalized"
    assert (parts.backend.encode(TEXT).ids == ids) is changes_nothing


def test_tokens_that_only_the_settings_have(llama: Path, edit: Edit) -> None:
    tokens = {"385": added_token("<|other|>", special=True), "384": added_token("<|think|>")}
    edit(llama / "tokenizer_config.json", added_tokens_decoder=tokens)
    parts = agrees_with_transformers(llama)
    assert parts.backend is not None
    assert {384, 385} < set(parts.backend.encode(TEXT).ids)


def test_a_token_that_would_get_another_id_is_left_out(llama: Path, edit: Edit) -> None:
    texts = {384: "<|think|>", 385: "", 386: "<|left|>", 387: "<|think|>", 400: "<|other|>"}
    tokens = {str(token_id): {"content": text} for token_id, text in texts.items()}
    edit(llama / "tokenizer_config.json", added_tokens_decoder=tokens)
    backend = read(llama).backend
    assert backend is not None
    assert backend.token_to_id("<|think|>") == 384
    assert backend.token_to_id("<|left|>") is None
    assert backend.token_to_id("<|other|>") is None
    twice = {"384": {"content": "<|think|>"}, "385": {"content": "<|think|>"}}
    tokens = {**twice, "386": {"content": "<|left|>"}}
    edit(llama / "tokenizer_config.json", added_tokens_decoder=tokens)
    backend = read(llama).backend
    assert backend is not None
    assert backend.token_to_id("<|left|>") is None


def test_older_checkpoints_have_tokens_in_files_of_their_own(llama: Path, edit: Edit) -> None:
    named = json.loads((llama / "tokenizer_config.json").read_text())
    edit(llama / "tokenizer_config.json", eos_token=..., added_tokens_decoder=...)
    eos = {"content": named["eos_token"], "lstrip": False, "rstrip": False}
    edit(llama / "special_tokens_map.json", eos_token=eos, pad_token="<|other|>")
    ids = {"<|other|>": 385, "<|think|>": 384, "<|end|>": 17}
    edit(llama / "added_tokens.json", **ids)
    parts = agrees_with_transformers(llama)
    assert parts.special_tokens["eos_token"] == named["eos_token"]
    assert parts.backend is not None
    decoder = parts.backend.get_added_tokens_decoder()
    assert (decoder[384].special, decoder[385].special) == (False, True)
    edit(llama / "tokenizer_config.json", added_tokens_decoder={"384": added_token("<|think|>")})
    assert "eos_token" not in agrees_with_transformers(llama).special_tokens  # the others are old


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], r"added_tokens_decoder is \[\]; expected an object"),
        ({"one": {}}, r"added_tokens_decoder is .*; expected an object of tokens by their ids"),
        ({"-1": {}}, "by their ids"),
        ({"²": {}}, "by their ids"),
        ({"9" * 99: {}}, "by their ids"),
        ({"384": None}, "added_tokens_decoder: 384: content is missing; expected a text"),
        ({"384": "<|think|>"}, "added_tokens_decoder: 384 is '<.think.>'; expected an object"),
        ({"384": {"content": 5}}, "content is 5; expected a text"),
        ({"384": {"content": "x", "rstrip": 1}}, "rstrip is 1; expected true or false"),
    ],
)
def test_damaged_added_tokens(tokens: Any, said: str, llama: Path, edit: Edit) -> None:
    edit(llama / "tokenizer_config.json", added_tokens_decoder=tokens)
    with pytest.raises(ModelFormatError, match=said):
        read(llama)


@pytest.mark.parametrize("token_id", [-1, 2**31, "7", True, [], 1.5])
def test_damaged_ids_of_older_checkpoints(token_id: Any, llama: Path, edit: Edit) -> None:
    edit(llama / "added_tokens.json", **{"<|think|>": token_id})
    with pytest.raises(ModelFormatError, match=r"added_tokens\.json: <\|think\|> is .*; expected"):
        read(llama)


ODD = (
    *(None, True, False, 0, -1, 2**31, 10**40, 0.5, "", "x", "\0", "\ud800", "x" * 70_000),
    *([], [[]], ["x"], {}, {"": 0}, {"content": "x"}),
)
FIELDS = ("content", "special", "lstrip", "rstrip", "single_word", "normalized")


def written(odd: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Files of a tokenizer that have an odd value, each alone."""
    for field in FIELDS:
        token = {**added_token("<|think|>"), field: odd}
        yield "tokenizer_config.json", {"added_tokens_decoder": {"384": token}}
    yield "tokenizer_config.json", {"added_tokens_decoder": odd}
    yield "tokenizer_config.json", {"added_tokens_decoder": {"384": odd}}
    yield "added_tokens.json", {"<|think|>": odd}
    yield "special_tokens_map.json", {"eos_token": odd}
    yield "chat_template.json", {"chat_template": odd}
    for name in OF_MODELS:
        yield "generation_config.json", {name: odd}


@pytest.mark.filterwarnings("ignore:.* is left out")
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:20])
def test_odd_values_are_typed_errors_or_harmless(odd: Any, llama: Path, edit: Edit) -> None:
    for name, fields in written(odd):
        file = llama / name
        before = file.read_bytes() if file.exists() else None
        edit(file, **fields)
        said = str(file)
        try:
            backend = read(llama).backend
            assert backend is not None
            backend.decode(backend.encode(TEXT).ids)
        except ModelFormatError as error:
            said = str(error)
        assert str(file) in said
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
