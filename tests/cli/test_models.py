from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

MAIN, OLD = "a" * 40, "b" * 40


def put(cache: Path, repo: str, commit: str, files: dict[str, int], ref: str | None) -> None:
    folder = cache / ("models--" + repo.replace("/", "--"))
    for name, size in files.items():
        file = folder / "snapshots" / commit / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}" if name.endswith("json") else b"x" * size)
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)


def test_models_of_the_cache_are_listed_with_their_sizes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    whole = {"config.json": 0, "model.safetensors": 3 * 2**20}
    put(tmp_path, "org/whole", MAIN, whole, "main")
    put(tmp_path, "org/whole", OLD, whole, "v1")
    put(tmp_path, "org/ggufs", MAIN, {"m-Q4_0.gguf": 2**20, "mmproj.gguf": 9}, "main")
    parts = {"p-00001-of-00002.gguf": 2**20}
    put(tmp_path, "org/parts", MAIN, parts, "main")
    put(tmp_path, "org/pickles", MAIN, {"config.json": 0, "pytorch_model.bin": 9}, "main")
    (tmp_path / "datasets--org--d/snapshots").mkdir(parents=True)
    lines = [" ".join(line.split()) for line in run("models").stdout.splitlines()]
    assert lines == [
        "hf:org/ggufs/m-Q4_0.gguf 1.0 MiB",
        "hf:org/parts/p-00001-of-00002.gguf 1.0 MiB incomplete",
        "org/whole 3.0 MiB",
        f"org/whole@{OLD} 3.0 MiB",
        f"{tmp_path}: 4 models, 8.0 MiB",
    ]


def test_a_cache_that_is_not_there_has_no_models(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    assert run("models").stdout == f"{tmp_path / 'none'}: 0 models, 0.0 MiB\n"
