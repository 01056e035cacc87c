from __future__ import annotations

import threading
import time
from importlib import import_module
from pathlib import Path

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


def test_one_that_nobody_waits_for_is_stopped(compiler: GrammarCompiler) -> None:
    began, abandoned = time.monotonic(), module.Abandonment()
    threading.Timer(0.3, abandoned.set).start()
    with pytest.raises(InvalidRequestError):
        compiler.matcher(StructuredOutput("regex", "a{1000000001}"), abandoned=abandoned)
    assert time.monotonic() - began < module._SECONDS / 2


@pytest.mark.parametrize("through", ["the working directory", "PYTHONPATH"])
def test_it_imports_no_module_of_the_users(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, through: str
) -> None:
    ran = tmp_path / "ran"
    for name in ("resource", "json", "contextlib", "llguidance", "sitecustomize", "usercustomize"):
        code = f"open({str(ran)!r}, 'a').write({name!r})\nraise SystemExit\n"
        (tmp_path / f"{name}.py").write_text(code)
    if through == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    else:
        monkeypatch.chdir(tmp_path)
    assert not compiler.matcher(StructuredOutput("regex", "a{20003}")).error
    assert not ran.exists()


def test_it_finds_llguidance_where_this_process_has_found_it() -> None:
    import llguidance

    (place,) = module._path_of("llguidance")
    assert Path(place, "llguidance", "__init__.py").samefile(llguidance.__file__)
