from __future__ import annotations

from pybatcher.params import OutputForm
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler, OutputMatcher

FORM = OutputForm("regex", "(one|two), three and more[.]?")


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
    assert one.n_allowed((*forced[:2], *ids(tokenizer, "zebra"))) == 2
    assert one.n_allowed(forced) == len(forced)


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
