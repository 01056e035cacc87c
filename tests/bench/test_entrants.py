from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import entrants


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """llama.cpp is installed, OpenVINO is not."""
    python = tmp_path / "python"
    python.touch()
    everybody = {
        "pybatcher": entrants.PYBATCHER,
        "llama.cpp": replace(entrants.LLAMA_CPP, python=python),
        "openvino": replace(entrants.OPENVINO, python=tmp_path / "missing"),
    }
    monkeypatch.setattr(entrants, "ALL", everybody)
    return list(everybody)


@pytest.mark.usefixtures("installed")
def test_who_is_chosen() -> None:
    assert [e.name for e in entrants.choose("")] == ["pybatcher", "llama.cpp"]
    assert [e.name for e in entrants.choose("llama.cpp")] == ["pybatcher", "llama.cpp"]
    assert [e.name for e in entrants.choose("pybatcher")] == ["pybatcher"]
    with pytest.raises(SystemExit, match="make rival-openvino"):
        entrants.choose("openvino")
    with pytest.raises(SystemExit, match="no contestant"):
        entrants.choose("vllm")


def test_what_is_converted_already(tmp_path: Path) -> None:
    assert entrants.PYBATCHER.has_model(tmp_path, "int8")
    assert not entrants.LLAMA_CPP.has_model(tmp_path, "int8")
    (tmp_path / "model-int8.gguf").touch()
    assert entrants.LLAMA_CPP.has_model(tmp_path, "int8")
    assert not entrants.OPENVINO.has_model(tmp_path, "int8")
    (tmp_path / "openvino-int8").mkdir()
    assert entrants.OPENVINO.has_model(tmp_path, "int8")


def test_a_conversion_that_fails_says_why(tmp_path: Path) -> None:
    broken = replace(entrants.PYBATCHER, converter="no_such_converter", model="x-{dtype}")
    with pytest.raises(RuntimeError, match="no_such_converter"):
        broken.convert(tmp_path, "int8")
