from __future__ import annotations

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.models.hub.hub_files import (
    chosen_gguf,
    chosen_mmproj,
    is_mmproj,
    matching,
    names_in_index,
    small_files,
)
from pybatcher.models.hub.hub_name import HubName, hub_name

MODEL = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
CODE = ["modeling_x.py", "pytorch_model.bin", "x.pt", "config.json.py", "a/config.json", ".env"]
PARTS = [f"m-Q4_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
GGUFS = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-f16.gguf"]


def named(text: str) -> HubName:
    name = hub_name(text)
    assert name is not None
    return name


def test_small_files_have_no_code() -> None:
    files = small_files([*CODE, *MODEL, "model.safetensors.index.json"], named("a/b"))
    assert files == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    index = "model.safetensors.index.json"
    assert small_files(["config.json", index], named("a/b")) == ["config.json", index]


def test_the_modules_of_an_embedder() -> None:
    modules = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["2_Dense/pytorch_model.bin", "onnx/config.json", "1_Pooling/x.py"]
    of_all = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"]
    files = small_files([*MODEL, *others, *of_all, *modules], named("a/b"))
    assert files == [*MODEL[:3], *of_all, *modules]
    assert small_files([*MODEL, *modules], named("a/b")) == MODEL[:3]


def test_a_sentencepiece_model_is_wanted_where_there_is_no_other_tokenizer() -> None:
    older = ["added_tokens.json", "tokenizer.model"]
    assert small_files(["config.json", "model.safetensors", *older], named("a/b"))[1:] == older
    assert "tokenizer.model" not in small_files([*MODEL, *older], named("a/b"))
    assert "vocab.txt" not in small_files([*MODEL, "vocab.txt"], named("a/b"))
    plain = [file for file in MODEL if file != "tokenizer.json"]
    assert "vocab.txt" in small_files([*plain, "vocab.txt"], named("a/b"))


@pytest.mark.parametrize("files", [[], CODE, ["config.json"], ["model.safetensors"], MODEL[:3]])
def test_without_safetensors(files: list[str]) -> None:
    with pytest.raises(ModelFormatError, match=r"'a/b': the repository has no config.json with m"):
        small_files(files, named("a/b"))


def test_names_in_an_index() -> None:
    assert names_in_index({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}) == [
        *("a.safetensors", "b.safetensors")
    ]
    for bad in ("../a.safetensors", "a.bin", "/a.safetensors", "a/b.safetensors", 3, None):
        assert names_in_index({"weight_map": {"x": bad}}) == []
    for no_index in (None, [], {}, {"weight_map": []}, 3):
        assert names_in_index(no_index) == []


@pytest.mark.parametrize(
    ("files", "name", "chosen"),
    [
        (["m.gguf"], "a/b", "m.gguf"),
        (["m.gguf", "mmproj-x.gguf", "README.md"], "a/b", "m.gguf"),
        (GGUFS, "a/b:Q4_K_M", "m-Q4_K_M.gguf"),
        (GGUFS, "a/b:q8_0", "m-Q8_0.gguf"),
        (GGUFS, "hf:a/b/m-Q8_0.gguf", "m-Q8_0.gguf"),
        (["Q4_K_M/m.gguf", "x/m-Q4_K_M.gguf"], "a/b:Q4_K_M", "x/m-Q4_K_M.gguf"),
        ([*MODEL, "m.gguf"], "a/b", None),
        ([*MODEL, "m-Q8_0.gguf"], "a/b:Q8_0", "m-Q8_0.gguf"),
        (MODEL, "a/b", None),
        ([*PARTS, "mmproj-x.gguf"], "a/b", PARTS[0]),
        ([*PARTS, "m-Q8_0.gguf"], "a/b:Q4_0", PARTS[0]),
        ([*PARTS, "m-Q8_0.gguf"], f"hf:a/b/{PARTS[0]}", PARTS[0]),
        ([f"Q4_0/{part}" for part in PARTS], "a/b:Q4_0", f"Q4_0/{PARTS[0]}"),
    ],
)
def test_one_gguf(files: list[str], name: str, chosen: str | None) -> None:
    assert chosen_gguf(files, named(name)) == chosen


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        (GGUFS, "a/b", r"'a/b': that is 2 of the .* \(m-Q4_K_M.gguf, m-Q8_0.gguf, mmproj-m-f16"),
        (GGUFS, "a/b:4_K_M", r"that is none of .*name one, as 'hf:a/b/FILE.gguf'"),
        (GGUFS, "a/b:Q5_0", "that is none of"),
        (GGUFS, "hf:a/b/x.gguf", "that is none of"),
        (MODEL, "a/b:Q8_0", r"that is none of the repository's GGUF files \(it has none\)"),
        (["../m.gguf", "a/../../m.gguf"], "hf:a/b/m.gguf", "it has none"),
        (PARTS[:2], "a/b", f"the repository has no {PARTS[2]}, a part of {PARTS[0]}"),
        (PARTS[1:], "a/b:Q4_0", f"the repository has no {PARTS[0]}, a part of"),
        (PARTS, f"hf:a/b/{PARTS[1]}", f"in 3 files; name the first, 'hf:a/b/{PARTS[0]}'"),
        ([*PARTS, "m-Q8_0.gguf"], "a/b", r"that is 2 of"),
        ([f"m{i}-Q8_0.gguf" for i in range(99)], "a/b", r"99 of .*, m11-Q8_0.gguf, \.\.\.\)"),
    ],
)
def test_no_gguf_or_several(files: list[str], name: str, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        chosen_gguf(files, named(name))


def test_kinds_are_whole_words_at_the_end() -> None:
    files = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "Q4_K_M-m.gguf", "m.Q4_K_M.gguf"]
    assert matching(files, "Q4_K_M") == ["m-Q4_K_M.gguf", "m.Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("file", "is_tower"),
    [
        ("mmproj.gguf", True),
        ("mmproj-F16.gguf", True),
        ("a/MMPROJ-m-f16.gguf", True),
        ("m.mmproj-Q8_0.gguf", True),
        ("m-mmproj-f16.gguf", True),
        ("mmproj/m.gguf", False),
        ("mmprojector-m.gguf", False),
        ("m.gguf", False),
    ],
)
def test_the_names_of_mmproj_files(file: str, is_tower: bool) -> None:
    assert is_mmproj(file) is is_tower
    assert matching([file], None) == ([] if is_tower else [file])


_OF_TYPES = ["mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf", "mmproj-Q8_0.gguf"]


@pytest.mark.parametrize(
    ("towers", "model", "chosen"),
    [
        ([], "m-Q8_0.gguf", None),
        (["mmproj-x.gguf"], "m-Q8_0.gguf", "mmproj-x.gguf"),
        (["mmproj-x.gguf", "mmproj-y.gguf"], "m-Q8_0.gguf", None),
        (_OF_TYPES, "m-Q8_0.gguf", "mmproj-BF16.gguf"),
        (_OF_TYPES[:2], "m-Q8_0.gguf", "mmproj-F16.gguf"),
        (["mmproj-model-f16.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", "mmproj-model-f16.gguf"),
        (
            ["mmproj-model-f16-4B.gguf", "mmproj-model-f16-12B.gguf"],
            "gemma-3-12b-it-q4_0.gguf",
            "mmproj-model-f16-12B.gguf",
        ),
        (
            ["mmproj-F16.gguf", "mmproj-Qwen3VL-4B-Instruct-Q8_0.gguf", "mmproj-Other.gguf"],
            "Qwen3VL-4B-Instruct-Q4_K_M.gguf",
            "mmproj-Qwen3VL-4B-Instruct-Q8_0.gguf",
        ),
        (["m.mmproj-f16.gguf"], "m.i1-Q4_K_M.gguf", "m.mmproj-f16.gguf"),
        (["sub/mmproj-m-f16.gguf"], "sub/m-00001-of-00002.gguf", "sub/mmproj-m-f16.gguf"),
        (["mmproj-m-f16.txt"], "m.gguf", None),
    ],
)
def test_the_mmproj_file_of_a_model(towers: list[str], model: str, chosen: str | None) -> None:
    assert chosen_mmproj([*towers, model], model) == chosen


def test_a_lone_tower_beside_several_models_must_have_the_name_of_one() -> None:
    files = ["mmproj-a.gguf", "a-Q8_0.gguf", "b-Q8_0.gguf"]
    assert chosen_mmproj(files, "a-Q8_0.gguf") == "mmproj-a.gguf"
    assert chosen_mmproj(files, "b-Q8_0.gguf") is None
