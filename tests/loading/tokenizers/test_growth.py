from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.character_map import map_characters
from pybatcher.loading.tokenizers.gguf_pretokenizers import KNOWN_EXPRESSIONS, PRE_TOKENIZERS
from pybatcher.loading.tokenizers.growth import Growth, check_growth, growth_of
from pybatcher.loading.tokenizers.tokenizer_files import private_backend, read_tokenizer
from pybatcher.text import Tokenizer as Text
from pybatcher.text.portions import _EXPRESSIONS

Edit = Callable[..., None]

TENFOLD = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}
OF_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
OF_SPECIAL = {"SpecialToken": {"id": "x", "type_id": 0}}


def template(single: list[Any], n_ids: int) -> dict[str, Any]:
    special = {"id": "x", "ids": [1] * n_ids, "tokens": ["x"] * n_ids}
    pair = [OF_TEXT, {"Sequence": {"id": "B", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {"x": special},
    }


GROWING: dict[str, tuple[str, Any, str]] = {
    "nine Replace": (
        "normalizer",
        {"type": "Sequence", "normalizers": [TENFOLD] * 9},
        r"normalizer\.normalizers\[1\]\.content: one character may become 100; .* at most 64",
    ),
    "Replace of nothing": (
        "normalizer",
        {"type": "Replace", "pattern": {"String": ""}, "content": "e" * 99},
        r"normalizer\.content: one character may become 100",
    ),
    "Replace of a regex": (
        "normalizer",
        {"type": "Replace", "pattern": {"Regex": "z*"}, "content": "e" * 99},
        r"normalizer\.content: one character may become 100",
    ),
    "a long Prepend": (
        "normalizer",
        {"type": "Prepend", "prepend": "e" * 100_000},
        r"normalizer\.prepend: one character may become 100001",
    ),
    "many steps": (
        "normalizer",
        {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000},
        "normalizer: it has 257 steps or more",
    ),
    "many ids around": (
        "post_processor",
        template([OF_SPECIAL, OF_TEXT], 2000),
        r"post_processor\.single: it adds 2000 token ids to a text; expected at most 1024",
    ),
    "many special tokens around": (
        "post_processor",
        template([OF_SPECIAL] * 2000 + [OF_TEXT], 1),
        r"post_processor\.single: it adds 2000 token ids",
    ),
    "copies": (
        "post_processor",
        template([OF_TEXT] * 9, 1),
        r"post_processor\.single: it has the text 9 times",
    ),
    "copies of copies": (
        "post_processor",
        {"type": "Sequence", "processors": [template([OF_TEXT] * 2, 1)] * 9},
        r"post_processor\.processors\[2\]\.single: it has the text 8 times",
    ),
    "a decoder": (
        "decoder",
        {"type": "Sequence", "decoders": [TENFOLD] * 9},
        r"decoder\.decoders\[1\]\.content: one character may become 100",
    ),
    "a long token": (
        "model",
        {"type": "BPE", "vocab": {"a": 0, "e" * 9999: 1}, "merges": []},
        r"model\.vocab: a token has 9999 characters",
    ),
    "a long prefix": (
        "model",
        {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "#" * 999,
         "max_input_chars_per_word": 100, "vocab": {"a": 0}},
        r"model\.continuing_subword_prefix: it has 999 characters",
    ),
    "long words": (
        "model",
        {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 10**9, "vocab": {"a": 0}},
        r"model\.max_input_chars_per_word: it is 1000000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_texts_is_refused_by_file_field_and_value(
    name: str, llama: Path, edit: Edit
) -> None:
    part, settings_of_part, said = GROWING[name]
    edit(llama / "tokenizer.json", **{part: settings_of_part})
    with pytest.raises(ModelFormatError, match=rf"tokenizer\.json: {said}"):
        read_tokenizer(llama, Fields({}, "config.json"))


def charsmap(*replacements: str) -> str:
    """Return a character map of SentencePiece with an empty trie."""
    trie = bytes(1024)
    listed = b"".join(each.encode() + b"\0" for each in replacements)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + listed).decode()


def of_normalizer(normalizer: Any) -> Growth:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizer
    return growth_of(backend)


def test_a_character_map_counts_with_its_longest_text() -> None:
    backend = Tokenizer(models.BPE())
    of_map = {"type": "Precompiled", "precompiled_charsmap": charsmap("a", "日" * 30, "b")}
    text = json.dumps({**json.loads(backend.to_str()), "normalizer": of_map})
    assert growth_of(private_backend(text, "x")).normalized == 30
    of_map["precompiled_charsmap"] = charsmap("e" * 5000)
    text = json.dumps({**json.loads(backend.to_str()), "normalizer": of_map})
    with pytest.raises(ModelFormatError, match="x: normalizer: one character may become 5000"):
        private_backend(text, "x")


KINDS = {
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "Lowercase": normalizers.Lowercase(),
    "Nmt": normalizers.Nmt(),
    "Strip": normalizers.Strip(),
    "StripAccents": normalizers.StripAccents(),
    "BertNormalizer": normalizers.BertNormalizer(),
    "BERT with accents": normalizers.BertNormalizer(strip_accents=False),
    "ByteLevel": normalizers.ByteLevel(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_character_grows_by_more_than_its_bound(kind: str) -> None:
    normalizer = KINDS[kind]
    most = of_normalizer(normalizer).normalized
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            assert len(normalizer.normalize_str(chr(code))) <= most


contents = st.text("ea \ufdfa\u0130", max_size=3)
steps = st.one_of(
    st.sampled_from(list(KINDS.values())),
    st.builds(normalizers.Replace, st.text("ea \ufdfa", min_size=1, max_size=3), contents),
    st.builds(
        lambda expression, content: normalizers.Replace(Regex(expression), content),
        st.sampled_from([r"\s+", " {2,}", "[ea]", "e+a", "(e|a)+", "e{1,3}", "."]),
        contents,
    ),
    st.builds(normalizers.Prepend, contents),
)


@settings(deadline=None, max_examples=60)
@given(
    chosen=st.lists(steps, min_size=1, max_size=4),
    text=st.text("ea \ufdfa\u0130日\u1f82", min_size=1, max_size=20),
)
def test_no_text_grows_by_more_than_its_bound(chosen: list[Any], text: str) -> None:
    try:
        most = of_normalizer(normalizers.Sequence(chosen)).normalized
    except ModelFormatError:
        return
    grown = text
    for step in chosen:  # one by one, since the library fails at some texts in sequences
        grown = step.normalize_str(grown)
        assert len(grown) <= most * len(text)


@pytest.mark.parametrize("pattern", ["", Regex("e*"), Regex("|e"), Regex("(?=e)"), Regex("^")])
def test_no_empty_match_grows_a_text_by_more_than_its_bound(pattern: Any) -> None:
    normalizer = normalizers.Replace(pattern, "a" * 20)
    grown = len(normalizer.normalize_str("e" * 100))
    assert grown - 20 <= of_normalizer(normalizer).normalized * 100


@settings(deadline=None)
@given(
    replaced=st.lists(st.tuples(st.text("eab", max_size=2), contents), max_size=3),
    tokens=st.lists(st.sampled_from(["e", "a ", "ab", "<0x41>", "\u2581b", "bbb"]), min_size=1),
)
def test_no_token_grows_by_more_than_its_bound(
    replaced: list[tuple[str, str]], tokens: list[str]
) -> None:
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), *(decoders.Replace(a, b) for a, b in replaced), decoders.Fuse()]
    )
    try:
        most = growth_of(backend).decoded
    except ModelFormatError:
        return
    assert len(backend.decoder.decode(tokens)) <= most * sum(1 + len(token) for token in tokens)


def test_tokenizers_of_published_models_are_read() -> None:
    """ALBERT's, the one with the most steps; the post-processor of a RoBERTa."""
    backend = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    backend.post_processor = processors.RobertaProcessing(("a", 0), ("a", 0))
    check_growth(backend, "x")
    assert growth_of(backend).is_quick
    llama = Tokenizer(models.BPE())
    llama.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    assert growth_of(llama) == Growth(normalized=2, work=4)


def of_expression(expression: str) -> Growth:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(expression), "isolated")
    return growth_of(backend)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_expressions_of_published_models_are_quick(name: str) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = PRE_TOKENIZERS[name].make()
    assert growth_of(backend).is_quick


def test_expressions_of_portions_are_quick() -> None:
    assert _EXPRESSIONS <= KNOWN_EXPRESSIONS


@pytest.mark.parametrize(
    ("expression", "is_quick"),
    [
        (r"\s+", True),
        (" {2,}", True),
        (r"[\p{P}$+<=>^`|~]+", True),
        ("[一-龥\u3040-ゟァ-ヺ]+", True),
        (r"\s?\p{L}+", True),
        ("(e+)+$", False),
        ("(e|ee)+$", False),
        ("e*e*e*b", False),
        ("(?=(e+)+b)", False),
        (r"(e)\1", False),
    ],
)
def test_expressions_of_several_repetitions_may_be_slow(expression: str, is_quick: bool) -> None:
    assert of_expression(expression).is_quick is is_quick
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(Regex(expression), "")
    assert growth_of(backend).is_quick is is_quick


def test_a_normalizer_in_python_counts_as_what_it_stands_for() -> None:
    of_map = {"type": "Precompiled", "precompiled_charsmap": charsmap("日" * 30)}
    backend = Tokenizer.from_str(
        json.dumps({**json.loads(Tokenizer(models.BPE()).to_str()), "normalizer": of_map})
    )
    map_characters(backend, base64.b64decode(of_map["precompiled_charsmap"]))
    assert growth_of(backend) == Growth(normalized=30, work=30)
    tokenizer = Text(backend, growth=growth_of(backend))
    assert tokenizer.quick_length == 8192 // 30
    assert tokenizer.normalized_length("a" * 100_000) == 100_000
