"""Agents of pydantic-ai against `pybatcher serve`."""

from __future__ import annotations

from pathlib import Path

from client_programs import ANSWER, Server, run_python


def test_agents_run_tools_over_both_apis(chained: Server, tmp_path: Path) -> None:
    found = run_python("ask_pydantic_ai.py", chained, tmp_path, "plain")
    assert set(found) == {"OpenAIChatModel", "OpenAIResponsesModel"}
    for one in found.values():
        assert one["text"] == one["streamed"] == ANSWER
        assert one["counted"] == [["Ouse", 7]] * 2


def test_outputs_have_their_type(shipped: Server, tmp_path: Path) -> None:
    found = run_python("ask_pydantic_ai.py", shipped, tmp_path, "typed")
    assert len(found) == 4
    for one in found.values():
        assert one["owls"] in (8, 9)
        assert one["where"] in ("at the river", "by the sea")
