from __future__ import annotations

import sys

import pytest

from pybatcher import InvalidRequestError
from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler
from pybatcher.text.grammars import compiler as module

LARK = 'start: "a" /[0-9]{2}/'


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (("regex", "[a-c]{2}"), "ab", "ad"),
        (("grammar", LARK), "a12", "b12"),
        (("choices", '["yes", "n\\"o\\n", "ä"]'), 'n"o\n', "maybe"),
        (("choices", '["yes", "n\\"o\\n", "ä"]'), "ä", "ö"),
        (("json_object", ""), '{"a": [1, 2]}', "[1]"),
        (("json_schema", '{"type": "integer", "minimum": 5}'), "17", '"a"'),
        (("json_schema", '{"type": "array"}'), "[1, 2]", "[1,2]"),
    ],
)
def test_each_kind_takes_its_texts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, form: StructuredOutput, right: str, wrong: str
) -> None:
    form = StructuredOutput(*form)
    made = compiler.matcher(form, tokenizer.encode(right, add_special_tokens=False))
    assert made.matcher.is_accepting()
    with pytest.raises(InvalidRequestError, match="output has a token that"):
        compiler.matcher(form, tokenizer.encode(wrong, add_special_tokens=False))


def test_what_was_compiled_last_is_kept(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_GRAMMARS", 2)
    one, two, three = (StructuredOutput("regex", text) for text in ("one", "two", "three"))
    for form in (one, two, one, three):
        compiler.matcher(form)
    assert [compiler.is_ready(form) for form in (one, two, three)] == [True, False, True]
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 8)
    compiler.matcher(two)
    assert [compiler.is_ready(form) for form in (one, two, three)] == [False, True, True]


def test_matchers_of_one_form_do_not_meet(compiler: GrammarCompiler) -> None:
    form = StructuredOutput("regex", "ab")
    one, other = compiler.matcher(form), compiler.matcher(form)
    one.advance([next(iter(other.forced()))])
    assert one.forced() != other.forced()


def test_models_without_tokenizer_or_end_say_so(tokenizer: Tokenizer) -> None:
    for bare, said in ((Tokenizer(None), "no tokenizer"), (_endless(tokenizer), "no end token")):
        with pytest.raises(InvalidRequestError, match=said):
            GrammarCompiler(bare, 2048).matcher(StructuredOutput("regex", "a"))


def _endless(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizer._backend)


def test_without_llguidance_the_way_out_is_told(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'pybatcher-engine\[structured\]'"):
        compiler.matcher(StructuredOutput("regex", "a"))


def test_a_form_that_cannot_be_compiled_is_replaced_by_its_looser_one(
    compiler: GrammarCompiler,
) -> None:
    bad = StructuredOutput("grammar", "start: nothing", "tools", "start: /a{3}/")
    assert not compiler.matcher(bad).error
    assert compiler.is_ready(bad)
    with pytest.raises(InvalidRequestError, match=r"^tools cannot be used"):
        compiler.matcher(bad._replace(looser=""))
    with pytest.raises(InvalidRequestError, match=r"^tools cannot be used"):
        compiler.matcher(bad._replace(looser="start: nobody"))
