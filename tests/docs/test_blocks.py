"""Every code block of the documents is run: what a reader copies works.

Python runs with the model that ships inside, a block by itself, in an empty folder. A block may
use the names below without making them. `await` at the top of a block is taken as in
`python -m asyncio`. A program for a framework that the tests do not install is type-checked, which
finds wrong names and arguments of pybatcher. Shell lines: see support/doc_shell.py. A block of
`text` is a diagram, whose paths test_links.py checks. A block of another language fails.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from command_line import Run, runner
from doc_blocks import DIAGRAM, ROOT, Block, blocks_of
from doc_shell import check_line, lines_of
from serving_doubles import Serving, serving
from type_check import type_errors

import pybatcher
from pybatcher.models import tiny_path
from pybatcher.sidecar.front.serve_config import read_config
from pybatcher.testing.checkpoints import make_checkpoint
from tests.support.vision_checkpoints import make_vision_checkpoint, picture

PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md"]
FILES = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [b for file in FILES for b in blocks_of(file) if b.language != DIAGRAM]
NOT_INSTALLED = {"django", "flask"}

# -- what a block may use without making it -------------------------------------------------------

MODULES = {"asyncio": asyncio, "pybatcher": pybatcher}
VALUES: dict[str, object] = {
    "prompt": "Once upon a time",
    "manual": "The red button stops the machine. The green button starts it again. ",
    "question": "What does the red button do?",
    "messages": [{"role": "user", "content": "What is 2 plus 3?"}],
}
SERVED: dict[str, Callable[[], Any]] = {  # started before the block and closed after it
    "batcher": pybatcher.Batcher,
    "client": pybatcher.Client,  # of a sidecar at its default socket
}
ENCODER = "path/to/encoder"
VISION_MODEL = "path/to/vision-model"
MODELS = ["path/to/model", "path/to/another"]  # folders; both are the model that ships inside


def torch_model() -> dict[str, object]:
    """`module` and `tokenizer`, of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return {
        "module": AutoModelForCausalLM.from_pretrained(tiny_path()),
        "tokenizer": AutoTokenizer.from_pretrained(tiny_path()),
    }


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all blocks."""
    with serving(tmp_path_factory.mktemp("sidecar"), "--http", "127.0.0.1:0") as running:
        (running.socket.parent / "pybatcher.sock").symlink_to(running.socket)
        yield running


@pytest.fixture
def folder(tmp_path: Path, sidecar: Serving, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a block runs: the models are there, and the sidecar where it is by default."""
    for model in MODELS:
        (tmp_path / model).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / model).symlink_to(tiny_path())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sidecar.socket.parent))
    monkeypatch.setitem(VALUES, "base_url", f"{sidecar.url}/v1")
    return tmp_path


# -- running --------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a `pybatcher` command in this process."""
    return runner(monkeypatch, capsys)


def marks(block: Block) -> list[pytest.MarkDecorator]:
    """A type checker reads all of pybatcher again after a change of it."""
    return [pytest.mark.slow] if any(name in block.text for name in NOT_INSTALLED) else []


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b), marks=marks(b)) for b in BLOCKS])
def test_a_block(block: Block, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if ENCODER in block.text:
        make_checkpoint(folder / ENCODER, "bert")
    if VISION_MODEL in block.text:
        make_vision_checkpoint(folder / VISION_MODEL, "qwen3_vl")
        picture(60, 80).save(folder / "cat.jpg")
    if block.language == "python":
        run_python(block)
    elif block.language == "sh":
        for words in lines_of(block.text):
            check_line(words, run, monkeypatch)
    elif block.language == "toml":
        (folder / "options.toml").write_text(block.text)
        assert read_config(folder / "options.toml")
    else:
        pytest.fail(
            f"{block} is in {block.language or 'no language'}: fence it as python, sh, toml or text"
        )


def run_python(block: Block) -> None:
    """In a loop of its own where the block awaits or uses what belongs to one, else in none."""
    padded = "\n" * (block.line - 1) + block.text  # so that a traceback has the document's lines
    tree = ast.parse(padded, str(block))
    code = compile(tree, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if imported_packages(tree) & NOT_INSTALLED:
        # The decorators of these packages have no types here.
        found = [one for one in type_errors(block.text) if "ntyped decorator" not in one]
        assert not found, f"{block}: {found}"
        return
    missing = used_but_not_made(tree)
    names = {**MODULES, **VALUES, "__name__": "__main__"}
    if missing & {"module", "tokenizer"}:
        names.update(torch_model())
    threads = set(threading.enumerate())
    if code.co_flags & inspect.CO_COROUTINE or missing & SERVED.keys():
        asyncio.run(in_a_loop(code, names, missing, threads))
    else:
        exec(code, names)


async def in_a_loop(
    code: CodeType, names: dict[str, object], missing: set[str], threads: set[threading.Thread]
) -> None:
    async with AsyncExitStack() as stack:
        for name in sorted(missing & SERVED.keys()):
            names[name] = await stack.enter_async_context(SERVED[name]())
        running = eval(code, names)
        if running is not None:
            await running
        for thread in set(threading.enumerate()) - threads:
            if not thread.daemon and not thread.name.startswith(("pybatcher-", "asyncio_")):
                await asyncio.to_thread(thread.join)  # one that the block has started


def used_but_not_made(tree: ast.AST) -> set[str]:
    """The names that a block reads and nowhere assigns."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} - made


def imported_packages(tree: ast.AST) -> set[str]:
    """Return the names of the packages that a program imports from."""
    froms = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    return {(name or "").partition(".")[0] for name in (*froms, *names)}


# -- the test itself -------------------------------------------------------------------------------


def block(language: str, text: str) -> Block:
    return Block(ROOT / "made-up.md", 1, language, text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("await batcher.generate(prompt, max_token=3)", pybatcher.InvalidRequestError),
        ("await client.generate(prompt, max_token=3)", pybatcher.InvalidRequestError),
        ("pybatcher.Batcher(n_context=3)", pybatcher.ConfigError),
        ("await nobody.generate(prompt)", NameError),
        (
            "import flask, pybatcher\npybatcher.BlockingBatcher().generate('a', max_token=1)",
            AssertionError,
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_block_that_is_wrong_fails(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_python(block("python", text))


@pytest.mark.parametrize(
    "line",
    [
        "pybatcher generate --max-token 3 Once",
        "pybatcher info --model path/to/no/model",
        "pybatcher serve --sockets p",
        "make tests",
        "pip install '.[benches]'",
        "pip install . -C cmake.define.PYBATCHER_CUDDA=ON",
        "cmake -DPYBATCHER_CUDDA=ON -P cmake/cuda.cmake",
        "python -m bench.compare llama-3.2-1b --dtypes int8",
        "python -m bench.report --fast",
        "python examples/no_server.py",
        "curl http://127.0.0.1:8000/v1/chat/completion -d '{}'",
        "curl http://127.0.0.1:8000/v1/chat/completions -d '{model: a}'",
        "rm -rf .",
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_line_that_is_wrong_fails(line: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = lines_of(line)
    with pytest.raises(AssertionError):
        check_line(words, run, monkeypatch)


def test_blocks_are_found_whatever_they_look_like(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        "text\n\n```python\na = 1\n```\n\n    indented\n\n- item\n\n    of the list\n\n"
        "  ```sh\n  make demo\n  ```\n\n```\nnameless\n```\n\n1. one\n\ntext\n\n    again\n"
    )
    found = [(block.line, block.language, block.text) for block in blocks_of(file)]
    assert found == [
        (4, "python", "a = 1\n"),
        (14, "sh", "make demo\n"),
        (18, "", "nameless\n"),
        (7, "", "indented"),
        (25, "", "again"),
    ]
