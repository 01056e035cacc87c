from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.common.isa import ISAS, NATIVE
from bench.engines import engine_list


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Make llama.cpp installed and OpenVINO not."""
    python = tmp_path / ".venv-rivals" / "python"
    python.parent.mkdir()
    python.touch()
    everybody = {
        "pybatcher": engine_list.PYBATCHER,
        "llama.cpp": replace(engine_list.LLAMA_CPP, python=python),
        "openvino": replace(engine_list.OPENVINO, python=tmp_path / "missing"),
    }
    monkeypatch.setattr(engine_list, "ALL", everybody)
    return list(everybody)


@pytest.mark.usefixtures("installed")
def test_chosen_engines() -> None:
    assert [e.name for e in engine_list.choose("")] == ["pybatcher", "llama.cpp"]
    assert [e.name for e in engine_list.choose("llama.cpp")] == ["pybatcher", "llama.cpp"]
    assert [e.name for e in engine_list.choose("pybatcher")] == ["pybatcher"]
    with pytest.raises(SystemExit, match="make rival-openvino"):
        engine_list.choose("openvino")
    with pytest.raises(SystemExit, match="is not an engine"):
        engine_list.choose("other")
    with pytest.raises(SystemExit, match="make rival-llamacpp ISA=avx2` first"):
        engine_list.choose("llama.cpp", ISAS["avx2"])


def test_an_instruction_set_has_an_environment_of_what_is_compiled_for_it() -> None:
    avx2 = ISAS["avx2"]
    assert engine_list.LLAMA_CPP.held_to(NATIVE) == engine_list.LLAMA_CPP
    held = engine_list.LLAMA_CPP.held_to(avx2)
    assert held.python == engine_list.ROOT / ".venv-rivals-avx2/bin/python"
    assert held.environment["PYBATCHER_CPU_TARGET"] == "avx2"
    assert engine_list.OPENVINO.held_to(avx2).python == engine_list.OPENVINO.python
    assert engine_list.OPENVINO.held_to(avx2).environment["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert "-DGGML_AVX512" not in avx2.cmake_arguments
    assert "-DGGML_AVX512_VNNI=ON" in ISAS["avx512_vnni"].cmake_arguments
    assert "-DGGML_AVX512_BF16=ON" in ISAS["avx512_bf16"].cmake_arguments
    assert NATIVE.cmake_arguments == ""


def test_dtypes_that_an_engine_is_measured_in() -> None:
    assert engine_list.VLLM.takes("bf16")
    assert not engine_list.VLLM.takes("int8")
    assert engine_list.OPENVINO.takes("int8")


def test_models_already_converted(tmp_path: Path) -> None:
    assert engine_list.PYBATCHER.has_model(tmp_path, "int8")
    assert not engine_list.LLAMA_CPP.has_model(tmp_path, "int8")
    (tmp_path / "model-int8.gguf").touch()
    assert engine_list.LLAMA_CPP.has_model(tmp_path, "int8")
    assert not engine_list.OPENVINO.has_model(tmp_path, "int8")
    (tmp_path / "openvino-int8").mkdir()
    assert engine_list.OPENVINO.has_model(tmp_path, "int8")


def test_a_conversion_that_fails_says_why(tmp_path: Path) -> None:
    broken = replace(engine_list.PYBATCHER, converter="no_such_converter", model="x-{dtype}")
    with pytest.raises(RuntimeError, match="no_such_converter"):
        broken.convert(tmp_path, "int8")
