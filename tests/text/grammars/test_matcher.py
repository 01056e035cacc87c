from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler, OutputMatcher
from pybatcher.text.grammars.matcher import ANY_TOKEN

VOCAB = 2048
FORMS = [
    ("regex", "(one|two), three and more[.]?"),
    ("choices", json.dumps(["apple", "apple pie", "apple tree"])),
    (
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {"a name": {"enum": ["Mia", "Mila"]}, "an age": {"type": "integer"}},
                "required": ["a name", "an age"],
                "additionalProperties": False,
            }
        ),
    ),
]

FORM = StructuredOutput("regex", "(one|two), three and more[.]?")


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def state(matcher: OutputMatcher) -> tuple[object, ...]:
    return matcher.matcher.compute_bitmask(), matcher.forced(), matcher.is_complete


def test_it_goes_forward_and_back_with_the_output(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tokens = ids(tokenizer, "two, three and more")
    one = compiler.matcher(FORM)
    for length in (0, 3, 5, 2, len(tokens), 1, len(tokens), 0):
        one.follow(tokens[:length])
        assert state(one) == state(compiler.matcher(FORM, tokens[:length]))
    assert not one.error


def test_forced_text_comes_in_the_tokenizers_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    one = compiler.matcher(FORM, ids(tokenizer, "two"))
    forced = one.forced()
    assert tokenizer.decode(forced) == ", three and more"[: len(tokenizer.decode(forced))]
    assert len(forced) > 2
    n_allowed, only = one.allowed((*forced[:2], *ids(tokenizer, "zebra")))
    assert (n_allowed, only) == (2, list(forced[:3]))
    assert one.allowed(forced)[0] == len(forced)


def test_forced_text_may_not_come_in_other_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    one = compiler.matcher(FORM, ids(tokenizer, "two"))
    letters = [token for letter in ", three" for token in ids(tokenizer, letter)]
    assert one.matcher.validate_tokens(letters) == len(letters)
    assert one.forced()[:2] != tuple(letters[:2])
    assert one.allowed(letters)[0] < 2


@pytest.mark.parametrize("text", ["<|end|>", "say <|end|> now", "a<|user|><|end|>"])
def test_forced_text_that_spells_a_special_token_is_text(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    form, output = StructuredOutput("choices", json.dumps([text])), list[int]()
    one = compiler.matcher(form)
    while not one.is_complete:
        _, (only,) = one.allowed(())
        assert one.forced()[:1] == (only,)
        assert one.allowed((only,))[0] == 1
        output.append(only)
        assert one.advance([only]) == 1
        assert not one.error
    assert tokenizer.decode(output) == text
    assert not set(output) & set(ids(tokenizer, "<|end|><|user|>"))


@pytest.mark.parametrize("attribute", ["max_tokens=9", 'stop="x"', 'stop = /x+/, capture="a"'])
def test_a_grammar_in_which_it_cannot_go_back_has_no_drafts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, attribute: str
) -> None:
    one = compiler.matcher(
        StructuredOutput("grammar", f"start: words\nwords[{attribute}]: /[a-z ]*/")
    )
    tokens = ids(tokenizer, "the old man")
    assert one.allowed(tokens) == (0, [ANY_TOKEN])
    one.follow(tokens)
    one.follow(tokens[:1])
    assert not one.error


def test_a_suffix_and_a_text_of_that_name_leave_the_drafts(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tokens = ids(tokenizer, "the old man")
    for grammar in ('words\nwords[suffix="x"]: /.*/', '/[a-z ]*/ " stop or max_tokens"'):
        one = compiler.matcher(StructuredOutput("grammar", f"start: {grammar}"))
        assert one.allowed(tokens)[0] == len(tokens)
        assert not one.error


def test_where_there_is_a_choice_every_token_that_fits_may_come(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    one = compiler.matcher(StructuredOutput("regex", "[a-z ]{1,40}"))
    draft = ids(tokenizer, "the old man 5")
    n_allowed, only = one.allowed(draft)
    assert tokenizer.decode(draft[:n_allowed]).startswith("the old man")
    assert only == [ANY_TOKEN] * (n_allowed + 1)


@pytest.mark.parametrize("kind_and_text", FORMS, ids=lambda one: one[0])
def test_what_may_come_follows_from_the_output_alone(
    compiler: GrammarCompiler, kind_and_text: tuple[Any, str]
) -> None:
    form, rng = StructuredOutput(*kind_and_text), random.Random(1)
    for _ in range(6):
        one, output = compiler.matcher(form), []
        while len(output) < 40 and not one.is_complete:
            (_, (only,)) = one.allowed(())
            mask = one.matcher.compute_bitmask()
            may = [i for i in range(VOCAB) if mask[i // 8] >> i % 8 & 1]
            assert only in (ANY_TOKEN, *may)
            token = rng.choice(may) if only == ANY_TOKEN else only
            output.append(token)
            one.advance([token])
            anew = compiler.matcher(form)
            n_allowed, places = anew.allowed(output)
            assert n_allowed == len(output)
            if not one.is_complete:
                assert places[-1] == one.allowed(())[1][0]
                assert compiler.matcher(form, output).allowed(()) == one.allowed(())


def test_it_follows_up_to_the_end_and_not_beyond(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tokens = ids(tokenizer, "one, three and more.")
    one = compiler.matcher(FORM)
    assert one.advance(tokens[:2]) == 2
    assert not one.is_complete
    assert one.advance([*tokens[2:], 5, 6]) == len(tokens) - 2
    assert one.is_complete
    assert not one.error


def test_a_wrong_token_is_an_error_that_stays(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    one = compiler.matcher(FORM)
    one.follow(ids(tokenizer, "zebra"))
    assert one.error
    one.follow([])
    assert one.error
