from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

COMMIT = "a" * 40


def test_a_model_in_the_cache_is_told_with_its_size(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = tmp_path / "models--org--m" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_0.gguf").write_bytes(b"x" * 3 * 2**19)
    refs = tmp_path / "models--org--m" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    assert run("pull", "org/m").stdout == f"{snapshot / 'm-Q4_0.gguf'}: 1.5 MiB\n"
    assert run("pull", "org/m:Q4_0").stdout == f"{snapshot / 'm-Q4_0.gguf'}: 1.5 MiB\n"
    assert "not in the cache" in run("pull", "org/other").stderr


@pytest.mark.parametrize("name", ["./model", "model.gguf", "https://huggingface.co/org/m"])
def test_a_path_and_an_address_are_refused(run: Run, name: str) -> None:
    outcome = run("pull", name)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"error: {name!r} is no name on the Hugging Face hub")
