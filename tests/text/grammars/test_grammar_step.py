from __future__ import annotations

from pybatcher import InvalidRequestError
from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler, after_step, before_step

FORM = StructuredOutput("regex", "(yes|no), and so on[.]?[.]")


def test_a_draft_is_cut_where_the_form_refuses_it(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    output = tokenizer.encode("yes", add_special_tokens=False)
    right = tokenizer.encode(", and", add_special_tokens=False)
    wrong = tokenizer.encode("zebra", add_special_tokens=False)
    job = before_step(3, compiler.matcher(FORM), output, (*right, *wrong))
    assert (job.seq_id, job.draft) == (3, tuple(right))


def test_after_the_end_nothing_is_kept(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    output = tokenizer.encode("no, and so on", add_special_tokens=False)
    (dot,) = tokenizer.encode(".", add_special_tokens=False)
    job = before_step(0, compiler.matcher(FORM), output, ())
    outcome = after_step(job, [dot, dot, 1, 7])
    assert (outcome.n_tokens, outcome.is_complete, outcome.error) == (2, True, None)


def test_before_the_end_the_forced_text_is_told(compiler: GrammarCompiler) -> None:
    outcome = after_step(before_step(0, compiler.matcher(FORM), [], ()), [])
    assert (outcome.n_tokens, outcome.is_complete, outcome.forced) == (0, False, ())
    job = before_step(0, compiler.matcher(StructuredOutput("regex", "fixed text")), [], ())
    assert after_step(job, []).forced


def test_what_cannot_be_followed_is_an_error(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    wrong = tokenizer.encode("zebra", add_special_tokens=False)
    outcome = after_step(before_step(0, compiler.matcher(FORM), [], ()), list(wrong))
    assert isinstance(outcome.error, InvalidRequestError)
    assert outcome.n_tokens == 0
