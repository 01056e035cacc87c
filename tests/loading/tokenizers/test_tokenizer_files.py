from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from pybatcher.errors import ModelFormatError
from pybatcher.loading import TokenizerParts
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.tokenizer_files import read_tokenizer

Edit = Callable[..., None]


def read(directory: Path, **config: Any) -> TokenizerParts:
    return read_tokenizer(directory, Fields(config, "config.json"))


def test_the_backend_is_transformers(llama: Path) -> None:
    text = "The fox 日本 <|im_start|> said 🦊"
    backend = read(llama).backend
    assert backend is not None
    assert backend.encode(text).ids == AutoTokenizer.from_pretrained(llama)(text)["input_ids"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False, "strip_accents": True},
        {"tokenizer_class": "BertTokenizer", "strip_accents": False},
        {"tokenizer_class": "DistilBertTokenizer", "tokenize_chinese_chars": False},
        {"tokenizer_class": "ElectraTokenizer", "do_lower_case": False},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    ],
)
def test_settings_of_bert(settings: dict[str, Any], lowercase: bool, tmp_path: Path) -> None:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = ("hello", "Hello", "cafe", "caf\u00e9", "Cafe", "Caf\u00e9", "\u4e16", "\u4e16\u4e16")
    ids = {token: i for i, token in enumerate((*special, *words))}
    stored = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    stored.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    stored.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    stored.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    stored.add_special_tokens([*special])
    stored.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    text = "Hello Caf\u00e9 \u4e16\u4e16 [MASK]"
    backend = read(tmp_path, model_type="bert").backend
    assert backend is not None
    assert backend.encode(text).ids == AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False, "unk_token": "[PAD]"},
        {"tokenizer_class": "DistilBertTokenizer", "cls_token": "[MASK]", "strip_accents": False},
    ],
    ids=str,
)
def test_a_bert_that_has_vocab_txt_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] hello Hello cafe café un ##able ##s \u4e16 , a\u2028b"
    (tmp_path / "vocab.txt").write_text(words.replace(" ", "\n") + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    parts, theirs = read(tmp_path, model_type="bert"), AutoTokenizer.from_pretrained(tmp_path)
    assert parts.backend is not None
    for text in ("Hello, unables Café \u4e16\u4e16 [MASK] xyz", "", "[SEP] hello"):
        ids = parts.backend.encode(text).ids
        assert ids == theirs(text)["input_ids"]
        decoded = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert parts.backend.decode(ids) == decoded


def test_a_vocab_txt_that_is_not_berts(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    assert read(tmp_path, model_type="llama").backend is None
    with pytest.raises(ModelFormatError, match=r"vocab\.txt has no token '\[CLS\]'"):
        read(tmp_path, model_type="bert")


def test_no_prompt_is_padded_or_truncated(llama: Path) -> None:
    stored = Tokenizer.from_file(str(llama / "tokenizer.json"))
    stored.enable_padding(length=500)
    stored.enable_truncation(4)
    stored.save(str(llama / "tokenizer.json"))
    backend = read(llama).backend
    assert backend is not None
    assert len(backend.encode("the fox").ids) < 10
    assert len(backend.encode("the fox " * 100).ids) > 100


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_bos_token": False},
        {"add_bos_token": True},
        {"add_eos_token": True},
    ],
)
@pytest.mark.parametrize("stored", ["as made", "without a post-processor"])
def test_what_goes_around_a_text_the_tokenizer_file_decides(
    settings: dict[str, Any], stored: str, llama: Path, edit: Edit
) -> None:
    if stored == "without a post-processor":
        edit(llama / "tokenizer.json", post_processor=None)
    edit(llama / "tokenizer_config.json", **settings)
    backend = read(llama).backend
    assert backend is not None
    expected = AutoTokenizer.from_pretrained(llama)("the fox")["input_ids"]
    assert backend.encode("the fox").ids == expected


def test_end_tokens_are_of_the_first_file_that_names_any_and_of_the_tokenizer(
    llama: Path, edit: Edit
) -> None:
    generation = llama / "generation_config.json"
    edit(generation, eos_token_id=[3, 5, 3], bos_token_id=2)
    parts = read(llama, eos_token_id=7, bos_token_id=8)
    assert (parts.eos_token_ids, parts.bos_token_id) == ({1, 3, 5}, 2)
    edit(generation, eos_token_id=..., bos_token_id=None)
    parts = read(llama, eos_token_id=[7, 9], bos_token_id=8)
    assert (parts.eos_token_ids, parts.bos_token_id) == ({1, 7, 9}, 8)
    generation.unlink()
    parts = read(llama, eos_token_id=-1)
    assert (parts.eos_token_ids, parts.bos_token_id) == ({1}, 0)  # the tokenizer's own
    edit(llama / "tokenizer_config.json", eos_token="<|no such token|>")
    assert read(llama, eos_token_id=7).eos_token_ids == {7}
    (llama / "tokenizer_config.json").unlink()
    parts = read(llama)
    assert (parts.eos_token_ids, parts.bos_token_id) == (frozenset(), None)


def test_special_tokens_are_texts_or_objects(llama: Path, edit: Edit) -> None:
    token = {"__type": "AddedToken", "content": "<|end|>", "lstrip": False, "special": True}
    edit(llama / "tokenizer_config.json", eos_token=token, pad_token="<|pad|>", bos_token=None)
    assert read(llama).special_tokens == {"eos_token": "<|end|>", "pad_token": "<|pad|>"}


def test_where_the_chat_template_may_be(llama: Path, edit: Edit) -> None:
    def templates() -> tuple[str | None, str | None]:
        parts = read(llama)
        return parts.chat_template, parts.tool_template

    config, file = llama / "tokenizer_config.json", llama / "chat_template.jinja"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(config, chat_template=named)
    file.write_text("from the file é", encoding="utf-8")
    assert templates() == ("from the file é", None)
    for_tools = llama / "additional_chat_templates" / "tool_use.jinja"
    for_tools.parent.mkdir()
    for_tools.write_text("tools of a file")
    assert templates() == ("from the file é", "tools of a file")
    file.unlink()
    for_tools.unlink()
    assert templates() == ("plain", "tools")
    edit(config, chat_template=named[:1])
    assert templates() == (None, "tools")
    edit(config, chat_template="a template")
    edit(llama / "chat_template.json", chat_template="of a processor")
    assert templates() == ("a template", None)
    edit(config, chat_template=None)
    assert templates() == ("of a processor", None)
    edit(llama / "chat_template.json", chat_template=5)
    with pytest.raises(ModelFormatError, match=r"chat_template\.json: chat_template is 5"):
        read(llama)
    (llama / "chat_template.json").unlink()
    edit(config, chat_template=...)
    assert templates() == (None, None)


def test_an_empty_directory_has_no_tokenizer(tmp_path: Path) -> None:
    assert read(tmp_path) == TokenizerParts(
        backend=None,
        chat_template=None,
        special_tokens={},
        bos_token_id=None,
        eos_token_ids=frozenset(),
    )


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("tokenizer.json", {"model": {"type": "BPE"}}, "not a valid tokenizer"),
        ("tokenizer.json", {"model": None}, "not a valid tokenizer"),
        ("tokenizer_config.json", {"eos_token": 5}, "eos_token is 5; expected a text"),
        ("tokenizer_config.json", {"eos_token": {"content": 5}}, "eos_token is"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template is 5; expected a template"),
        ("tokenizer_config.json", {"chat_template": ["x"]}, "chat_template is"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}, "chat_template is"),
        ("generation_config.json", {"eos_token_id": "1"}, "eos_token_id is '1'; expected a token"),
        ("generation_config.json", {"eos_token_id": [True]}, r"eos_token_id is \[True\]"),
        ("generation_config.json", {"eos_token_id": 2**40}, "up to 2147483647"),
        ("generation_config.json", {"bos_token_id": {}}, "bos_token_id is {}"),
    ],
)
def test_damage_is_named(
    file: str, changes: dict[str, Any], said: str, llama: Path, edit: Edit
) -> None:
    (llama / "chat_template.jinja").unlink()  # which would count first
    edit(llama / file, **changes)
    with pytest.raises(ModelFormatError, match=f"{file}: .*{said}"):
        read(llama)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"\xff", b'{"a":' * 10_000])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_files_that_are_something_else(file: str, data: bytes, llama: Path) -> None:
    if (file, data) == ("tokenizer_config.json", b"{}"):
        data = json.dumps([]).encode()
    (llama / file).write_bytes(data)
    with pytest.raises(ModelFormatError, match=file):
        read(llama)


def test_a_template_that_is_no_text(llama: Path) -> None:
    (llama / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFormatError, match=r"chat_template\.jinja: not UTF-8"):
        read(llama)
