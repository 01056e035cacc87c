"""Agents of openai-agents against `pybatcher serve`."""

from __future__ import annotations

from pathlib import Path

from client_programs import ANSWER, Server, run_python


def test_agents_run_tools_over_both_apis(chained: Server, tmp_path: Path) -> None:
    found = run_python("ask_openai_agents.py", chained, tmp_path)
    assert set(found) == {"OpenAIResponsesModel", "OpenAIChatCompletionsModel"}
    for one in found.values():
        assert one["text"] == one["streamed"] == ANSWER
        assert one["items"] == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        assert one["counted"] == [["Ouse", 7]] * 2
        assert one["events"] > 8
