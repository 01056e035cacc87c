"""What a worker is told to serve, and what a reload changes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pybatcher.errors import ConfigError, ModelFormatError
from pybatcher.models.hub import absolute_model
from pybatcher.sidecar.front.named_models import specs_of
from pybatcher.sidecar.front.worker_spec import WorkerSpec

SPEC = WorkerSpec(model="/a", system_prompt="s", options={"n_ctx": 512}, beat_period=0.5)


def test_it_comes_over_the_wire_as_it_is() -> None:
    assert WorkerSpec.from_wire(SPEC.to_wire()) == SPEC
    with pytest.raises(ConfigError, match="two versions"):
        WorkerSpec.from_wire({**SPEC.to_wire(), "newer": 1})


def test_a_name_on_the_hub_becomes_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").touch()
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("c" * 40)
    assert WorkerSpec(model="a/b").found().model == str(snapshot / "m.gguf")
    with pytest.raises(ModelFormatError, match="'a/c': no such directory"):
        WorkerSpec(model="a/c").found()
    for model in (None, "./a/b", "/a/b"):
        assert WorkerSpec(model=model).found().model == model


def test_an_absolute_path_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount may hang."""

    def exists(path: object) -> bool:
        raise AssertionError(path)

    monkeypatch.setattr(os.path, "exists", exists)
    assert WorkerSpec(model="/mnt/model").found().model == "/mnt/model"
    assert specs_of({"model": "/mnt/model"})[""].model == "/mnt/model"
    assert absolute_model("/mnt/model", Path("/")) == "/mnt/model"


def test_what_is_not_changed_stays() -> None:
    assert SPEC.changed({}) == SPEC
    other = SPEC.changed({"model": None, "n_batch": 64})
    assert (other.model, other.system_prompt) == (None, "s")
    assert other.options == {"n_ctx": 512, "n_batch": 64}
    assert SPEC.options == {"n_ctx": 512}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_ctx": 1}, "n_ctx is 1"),
        ({"max_frame": 5000}, "unknown option 'max_frame'"),
        ({"model": 5}, "model is 5"),
        ({"system_prompt": ["s"]}, "system_prompt is"),
        ({"beat_period": 1.0}, "unknown option 'beat_period'"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SPEC.changed(changes)
