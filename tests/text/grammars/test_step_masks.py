from __future__ import annotations

import ctypes

import pytest

from pybatcher import _core
from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler, StepMasks, before_step
from pybatcher.text.grammars.matcher import ANY_TOKEN

VOCAB = 2048


def rows(memory: _core.TokenMasks) -> list[bytes]:
    size = memory.row_bytes
    return [ctypes.string_at(memory.address + i * size, size) for i in range(memory.n_rows)]


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["at once", "on a thread"])
def test_each_row_has_its_mask_and_others_are_left(
    compiler: GrammarCompiler, tokenizer: Tokenizer, seconds: float
) -> None:
    form = StructuredOutput("regex", "[a-z]+ (and|or) [a-z]+")
    memory, masks = _core.TokenMasks(6, VOCAB), StepMasks()
    masks._slowest = seconds
    before = rows(memory)[0]
    draft = tuple(tokenizer.encode("old and", add_special_tokens=False))[:2]
    output = tokenizer.encode("new", add_special_tokens=False)
    jobs = [
        (before_step(0, compiler.matcher(form), (), draft), 1),
        (before_step(1, compiler.matcher(form), output, ()), 5),
    ]
    assert {*jobs[0][0].only, *jobs[1][0].only} == {ANY_TOKEN}
    masks.begin(memory, jobs).result()
    expected = [compiler.matcher(form, one) for one in ((), draft[:1], draft, output)]
    size = memory.row_bytes
    found = rows(memory)
    assert [found[i] for i in (1, 2, 3, 5)] == [
        one.matcher.compute_bitmask()[:size] for one in expected
    ]
    assert found[0] == found[4] == before
    masks.close()


def test_where_one_token_may_come_its_mask_has_no_other(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    memory, masks = _core.TokenMasks(8, VOCAB), StepMasks()
    mixed, fixed = (
        StructuredOutput("regex", "yes, (and|or) so"),
        StructuredOutput("regex", "always the same"),
    )
    draft = compiler.matcher(mixed).forced()
    jobs = [
        (before_step(0, compiler.matcher(mixed), (), draft), 0),
        (before_step(1, compiler.matcher(fixed), (), ()), 7),
    ]
    assert len(draft) > 1
    masks.begin(memory, jobs).result()
    found = [[i for i in range(VOCAB) if row[i // 8] >> i % 8 & 1] for row in rows(memory)]
    assert found[: len(draft)] == [[token] for token in draft]
    assert len(found[len(draft)]) > 1
    assert found[7] == [compiler.matcher(fixed).forced()[0]]
    masks.close()


def test_a_failure_opens_the_gate(compiler: GrammarCompiler) -> None:
    memory, masks = _core.TokenMasks(1, VOCAB), StepMasks()
    job = (before_step(0, compiler.matcher(StructuredOutput("regex", "[a-z]+")), (), ()), 0)
    opened = []

    class Watched:
        n_rows, row_bytes, address = 1, 1, memory.address  # too few bytes

        def close(self) -> None:
            opened.append("close")

        def open(self) -> None:
            opened.append("open")

    masks._slowest = 0.0
    with pytest.raises(ValueError, match="Invalid buffer size"):
        masks.begin(Watched(), [job]).result()
    assert opened == ["open"]
    opened.clear()
    masks._slowest = 1.0
    filled = masks.begin(Watched(), [job])
    with pytest.raises(ValueError, match="Invalid buffer size"):
        filled.result()
    assert opened == ["close", "open"]
    masks.close()
    masks._slowest = 1.0
    with pytest.raises(RuntimeError):
        masks.begin(Watched(), [])
    assert opened == ["close", "open"] * 2
