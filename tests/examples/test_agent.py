from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripted_chats import ScriptedBatcher, turn_of

from pybatcher import ToolCall


@pytest.fixture
def agent(examples: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent", examples / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_it_calls_until_there_is_an_answer(
    agent: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    sun = ToolCall("call_0", "weather", {"city": "Rome"}, "")
    wrong = ToolCall("call_1", "add", {"a": 3}, "")
    right = ToolCall("call_2", "add", {"a": 3, "b": 4}, "")
    batcher = ScriptedBatcher(turn_of("", sun, wrong), turn_of("", right), turn_of("Sun, and 7."))
    assert await agent.ask(batcher, "Weather in Rome, and 3 plus 4?") == "Sun, and 7."
    results = [one["content"] for one in batcher.asked[-1] if one["role"] == "tool"]
    assert results[0] == "sun"
    assert results[1].startswith("error: ")
    assert results[2] == "7"
    out = capsys.readouterr().out
    assert "calls {'name': 'add', 'arguments': {'a': 3, 'b': 4}}" in out
    assert "result 7" in out


async def test_it_gives_up_a_model_that_calls_for_ever(agent: ModuleType) -> None:
    call = ToolCall("call_0", "weather", {"city": "Rome"}, "")
    batcher = ScriptedBatcher(*[turn_of("", call)] * 9)
    assert await agent.ask(batcher, "Why?") == ""
    assert len(batcher.asked) == 5


def test_it_runs_with_the_shipped_model(examples: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-W", "error", str(examples / "agent.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "3 plus 4" in outcome.stdout
