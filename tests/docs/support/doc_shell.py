"""Lines of shell in the documents, run as far as a test can run them.

`pybatcher` commands run, in this process, beside a sidecar. What installs, builds or measures is
not run: the extra, target, option or file that the line names must exist. A command without an
entry in COMMANDS fails.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from command_line import Run
from doc_blocks import ROOT
from starlette.routing import Match

from pybatcher import Batcher
from pybatcher.http import application

__all__ = ["check_line", "lines_of"]

Words = list[str]


class Context(NamedTuple):
    """What a command is run with."""

    run: Run
    monkeypatch: pytest.MonkeyPatch
    stdin: bytes


def lines_of(text: str) -> Iterator[Words]:
    """The commands of a block, in words, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def check_line(words: Words, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run or check one command; AssertionError says what is wrong with it."""
    stdin = "Hello!"
    if "|" in words:
        stdin = " ".join(words[1 : words.index("|")])
        assert words[0] == "echo", "only echo is known before a pipe"
        words = words[words.index("|") + 1 :]
    while "=" in words[0] and (variable := words[0].partition("="))[0].isidentifier():
        monkeypatch.setenv(variable[0], variable[2])
        words = words[1:]
    command = words[0].removeprefix(".venv/bin/")
    assert command in COMMANDS, f"{command!r} has no entry in COMMANDS of {Path(__file__).name}"
    COMMANDS[command](words[1:], Context(run, monkeypatch, f"{stdin}\n".encode()))


def _pybatcher(words: Words, context: Context) -> None:
    """Run the command. `serve` stops where its server would start; `top` ends after a moment.

    `top` of a URL, where neither a server nor a key file is, ends with the error of that.
    """
    context.monkeypatch.setattr("pybatcher.cli.serve._run", lambda *_: 0)
    end = ["--seconds", "0.1"] if words[:1] == ["top"] else []
    outcome = context.run(*words, *end, stdin=context.stdin)
    if words[:1] == ["top"] and any("://" in word for word in words):
        errors = ("error: there is no live feed at", "error: cannot read api_key_file")
        assert outcome.stderr.startswith(errors), outcome.stderr
        return
    assert (outcome.status, outcome.stderr) == (0, ""), outcome.stderr


def _make(words: Words, _: Context) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = [word for word in words if "=" not in word]
    assert names, "make without a target"
    for name in names:
        assert name in targets, f"the Makefile has no target {name}"


def _pip(words: Words, _: Context) -> None:
    """`pip install` of this project, with extras that it has."""
    assert words.pop(0) == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    while words:
        word = words.pop(0)
        if word == "-C":
            _cmake_option(words.pop(0).removeprefix("cmake.define."))
        elif (found := re.fullmatch(r"(pybatcher-engine|\.)(?:\[([\w,]+)\])?", word)) is not None:
            for extra in (found[2] or "").split(","):
                assert extra in {"", *extras}, f"pyproject.toml has no extra {extra}"
        else:
            known = {requirement.split(">")[0] for requirement in extras["test"]}
            assert word in known, f"{word} is none of the test extra: is it spelt right?"


def _cmake(words: Words, _: Context) -> None:
    for word in words:
        if word.startswith("-D"):
            _cmake_option(word.removeprefix("-D"))
        elif word not in ("-P", "..."):
            assert (ROOT / word).exists(), f"there is no file {word}"


def _cmake_option(setting: str) -> None:
    name, _, value = setting.partition("=")
    text = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "cmake" / "cuda.cmake").read_text()
    assert value
    assert re.search(rf"\b{name}\b", text), f"CMake has no option {name}"


def _python(words: Words, context: Context) -> None:
    """A benchmark has to take its arguments; other modules and files have to exist."""
    if words[0] != "-m":
        assert (ROOT / words[0]).is_file(), f"there is no file {words[0]}"
        return
    module, arguments = words[1], words[2:]
    if module == "pytest":
        for argument in arguments:
            assert argument.startswith("-") or (ROOT / argument).exists(), argument
        return
    assert module.startswith("bench."), f"{module}: only modules of bench are known here"
    if (ROOT / module.replace(".", "/") / "__main__.py").exists():
        module += ".__main__"
    main = importlib.import_module(module).main
    if "parse_args" in inspect.getsource(main):
        _reads(main, module, arguments, context.monkeypatch)
    else:
        assert not arguments, f"{module} takes no arguments"


def _reads(
    main: Callable[[], None], module: str, arguments: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser) -> None:
        parse(self, arguments)  # ends with status 2 where they are wrong
        raise SystemExit(0)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0, f"{module} does not take {arguments}"


def _file_of_the_checkout(name: str) -> Callable[[Words, Context], None]:
    def check(words: Words, _: Context) -> None:
        assert (ROOT / name).is_file(), f"there is no file {name}"

    return check


def _uvicorn(words: Words, _: Context) -> None:
    assert words[0] == "--app-dir"
    assert (ROOT / words[1] / f"{words[2].partition(':')[0]}.py").is_file()


def _curl(words: Words, _: Context) -> None:
    """A request that the application has a route for; what it sends is JSON."""
    options = {"-d": "", "-H": "", "--unix-socket": ""}
    (url,) = (
        word
        for before, word in pairwise(["", *words])
        if before not in options and word not in options
    )
    given = {before: word for before, word in pairwise(words) if before in options}
    if body := given.get("-d"):
        assert _is_json(body), f"{body} is no JSON"
    scope = {
        "type": "http",
        "path": urlsplit(url).path,
        "method": "POST" if body else "GET",
        "headers": [],
    }
    matches = [route.matches(scope)[0] for route in application({"any": Batcher()}).routes]
    assert Match.FULL in matches, f"no route for {scope['method']} {scope['path']}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


COMMANDS: dict[str, Callable[[Words, Context], None]] = {
    "pybatcher": _pybatcher,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "cmake": _cmake,
    "uvicorn": _uvicorn,
    "curl": _curl,
    "pre-commit": _file_of_the_checkout(".pre-commit-config.yaml"),
    ".ci/run": _file_of_the_checkout(".ci/run"),
}
