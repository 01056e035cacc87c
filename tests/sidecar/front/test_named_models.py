from __future__ import annotations

from pathlib import Path

import pytest

from pybatcher import ConfigError
from pybatcher.sidecar.front.named_models import read_models, socket_of, specs_of


def test_a_path_is_one_and_a_name_has_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    for text in ("a", "./a=b", "/a=b", "./a/b", "a/b/c"):
        assert read_models([text]) == {"model": str(here / text)}
    for name in ("a/b", "a/b@v1:Q4_K_M", "hf:a/b/c.gguf"):
        assert read_models([name]) == {"model": name}
        assert read_models([f"x={name}"]) == {"models": {"x": name}}
    assert read_models(["a=b"]) == {"models": {"a": str(here / "b")}}
    monkeypatch.setenv("HOME", "/home/me")
    assert read_models(["x/a=~/b", "c=/d=e"]) == {"models": {"x/a": "/home/me/b", "c": "/d=e"}}
    for texts in (["a", "b"], ["a=b", "c"], ["a=b", "a=c"], ["a="], ["=a"], [" a=b"]):
        with pytest.raises(ConfigError):
            read_models(texts)


def test_all_workers_have_the_same_options() -> None:
    options = {"n_ctx": 512, "system_prompt": "Hi"}
    (only,) = specs_of(options).values()
    assert (only.model, only.system_prompt, only.options) == (None, "Hi", {"n_ctx": 512})
    specs = specs_of({**options, "models": {"a": "/x", "b": "/y"}})
    assert [(name, one.model, one.options) for name, one in specs.items()] == [
        ("a", "/x", {"n_ctx": 512}),
        ("b", "/y", {"n_ctx": 512}),
    ]
    assert {one.system_prompt for one in specs.values()} == {"Hi"}
    with pytest.raises(ConfigError, match="both given"):
        specs_of({"model": "/x", "models": {"a": "/x"}})


def test_a_socket_has_the_name_of_its_model() -> None:
    assert socket_of("/run/{model}.sock", "a") == "/run/a.sock"
    assert socket_of("/run/{model}.sock", "") == "/run/{model}.sock"
    assert socket_of("/run/p.sock", "a/b") == "/run/p.sock"
    with pytest.raises(ConfigError, match="a/b"):
        socket_of("/run/{model}.sock", "a/b")
