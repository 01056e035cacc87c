from __future__ import annotations

from importlib import import_module

import pytest

from pybatcher import InvalidRequestError
from pybatcher.params import StructuredOutput
from pybatcher.text.grammars import GrammarCompiler

module = import_module("pybatcher.text.grammars.probe")


@pytest.mark.parametrize(
    ("form", "harmless"),
    [
        (("regex", "[a-z]{1,100}(x|y){20}"), True),
        (("regex", "a{1000000}"), False),
        (("regex", "a{,99999}"), False),
        (("regex", "((a{40}){40}){40}"), False),
        (("json_schema", '{"type": "string", "maxLength": 100}'), True),
        (("json_schema", '{"type": "string", "maxLength": 1000000}'), False),
        (("json_schema", '{"enum": [' + '"x", ' * 9000 + '"y"]}'), False),
        (("choices", '["12345678"]'), True),
        (("json_object", ""), True),
    ],
)
def test_large_and_counting_forms_are_tried_elsewhere(
    form: StructuredOutput, harmless: bool
) -> None:
    assert module.is_harmless(StructuredOutput(*form)) is harmless


def test_a_large_form_that_compiles_is_taken(compiler: GrammarCompiler) -> None:
    form = StructuredOutput("regex", "a{20001}")
    assert not module.is_harmless(form)
    assert not compiler.matcher(form).error


@pytest.mark.slow
def test_one_that_takes_for_ever_is_stopped(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 2)
    with pytest.raises(InvalidRequestError, match="regex cannot be used: to compile it takes more"):
        compiler.matcher(StructuredOutput("regex", "a{1000000000}"))


def test_a_process_that_cannot_start_is_told_of(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "executable", "/nowhere/python")
    with pytest.raises(InvalidRequestError, match="cannot be started"):
        compiler.matcher(StructuredOutput("regex", "a{20002}"))
