"""`pybatcher chat --tools`: functions of a module, their calls, and the turns of a conversation."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Run
from scripted_chats import ScriptedBatcher, turn_of

from pybatcher import SamplingParams, ToolCall
from pybatcher.cli.chat import Talk, _answer
from pybatcher.cli.tools import load_tools, shown

MODULE = '''
import asyncio

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

async def later(text: str) -> dict:
    """Answer later."""
    await asyncio.sleep(0)
    return {"text": text}

number = 5
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current directory."""
    (tmp_path / "some_tools.py").write_text(MODULE)
    (tmp_path / "broken_tools.py").write_text("raise RuntimeError('no')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "some_tools", raising=False)
    return "some_tools"


def test_functions_are_found_by_their_names(module: str) -> None:
    tools = load_tools(f"{module}:add, later")
    assert list(tools) == ["add", "later"]
    assert tools["add"](3, 4) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("some_tools", "is not like 'module:function,function'"),
        ("some_tools:", "is not like"),
        (":add", "is not like"),
        ("no_such_tools:add", "'no_such_tools' cannot be imported"),
        ("broken_tools:add", "'broken_tools' cannot be imported: no"),
        ("some_tools:nothing", "has no function 'nothing'"),
        ("some_tools:number", "has no function 'number'"),
    ],
)
def test_what_is_no_function_is_said(module: str, text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        load_tools(text)
    assert message in str(raised.value)


def test_a_call_is_shown_in_a_line() -> None:
    call = ToolCall("call_0", "add", {"a": 3, "b": "x\ny"}, "")
    assert shown(call, "7\n8") == "add(a=3, b='x\\ny') -> 7 8"
    assert len(shown(call, "long " * 200)) < 300


def answer(batcher: ScriptedBatcher, module: str) -> list[dict[str, Any]]:
    talk = Talk(SamplingParams(), load_tools(f"{module}:add"), None, None)
    asked = [{"role": "user", "content": "What is 3 plus 4?"}]
    with asyncio.Runner() as runner:
        return _answer(runner, batcher, asked, talk)  # type: ignore[arg-type]


def test_results_go_back_until_there_is_an_answer(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ToolCall("call_0", "add", {"a": 3, "b": 4}, "")
    batcher = ScriptedBatcher(turn_of("", call, reasoning="I add."), turn_of("It is 7."))
    answers = answer(batcher, module)
    assert [one["role"] for one in answers] == ["assistant", "tool", "assistant"]
    assert answers[1] == {"role": "tool", "tool_call_id": "call_0", "content": "7"}
    assert [len(messages) for messages in batcher.asked] == [1, 3]
    out, err = capsys.readouterr()
    assert out == "It is 7.\n"
    assert "I add." in err
    assert "add(a=3, b=4) -> 7" in err


def test_a_model_that_calls_for_ever_is_given_up(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ToolCall("call_0", "add", {"a": 3, "b": 4}, "")
    answers = answer(ScriptedBatcher(*[turn_of("", call)] * 20), module)
    assert len(answers) == 16
    assert "called tools 8 times without an answer" in capsys.readouterr().err


def test_what_there_is_of_an_interrupted_answer_stays(module: str) -> None:
    call = ToolCall("call_0", "add", {"a": 3, "b": 4}, "")
    answers = answer(ScriptedBatcher(turn_of("", call), KeyboardInterrupt()), module)
    assert answers[-1] == {"role": "assistant", "content": "so far"}


def test_on_the_command_line(run: Run, module: str) -> None:
    outcome = run("chat", "--tools", f"{module}:add", "--max-tokens", "16", stdin=b"Hello!\n")
    assert (outcome.status, len(outcome.stdout.splitlines())) == (0, 1)
    refused = run("chat", "--tools", "nothing")
    assert refused.status == 2
    assert "is not like" in refused.stderr
    refused = run("chat", "--max-reasoning-tokens", "0", stdin=b"Hello!\n")
    assert "max_reasoning_tokens is 0" in refused.stderr
