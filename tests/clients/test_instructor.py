"""instructor against `pybatcher serve`."""

from __future__ import annotations

from pathlib import Path

from client_programs import Server, run_python

MODES = {"JSON_SCHEMA", "TOOLS", "RESPONSES_TOOLS", "ANTHROPIC_TOOLS"}


def test_outputs_have_their_type_in_every_mode(shipped: Server, tmp_path: Path) -> None:
    found = run_python("ask_instructor.py", shipped, tmp_path)
    assert set(found) == MODES
    for whole_and_streamed in found.values():
        assert len(whole_and_streamed) == 2
        for owl in whole_and_streamed:
            assert owl["kind"] in ("barn owl", "tawny owl")
            assert isinstance(owl["is_awake"], bool)
            assert len(owl["rings"]) <= 2
            assert set(owl["rings"]) <= {1, 2, 3}
