"""Where a sidecar listens when nobody names a path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pybatcher import ConfigError
from pybatcher.sidecar.protocol.address import default_socket_path


def test_it_is_in_the_directory_that_is_the_users_own() -> None:
    path = default_socket_path({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert path == Path("/run/user/7/pybatcher.sock")


def test_a_path_that_is_named_comes_first() -> None:
    named = {"PYBATCHER_SOCKET": "there.sock", "XDG_RUNTIME_DIR": "/run/user/5"}
    assert default_socket_path(named) == Path("there.sock")
    unnamed = {**named, "PYBATCHER_SOCKET": ""}
    assert default_socket_path(unnamed) == Path("/run/user/5/pybatcher.sock")


@pytest.mark.parametrize(
    "environ",
    [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "run"}, {"XDG_RUNTIME_DIR": "run/7"}],
)
def test_without_one_the_way_out_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="give a path for the socket") as caught:
        default_socket_path(environ)
    assert repr(environ.get("XDG_RUNTIME_DIR", "")) in str(caught.value)


def test_macos_has_a_directory_for_each_user_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    own = {"TMPDIR": "/var/folders/ab/T/"}
    assert default_socket_path(own) == Path("/var/folders/ab/T/pybatcher.sock")
    both = {**own, "XDG_RUNTIME_DIR": "/run/user/7"}
    assert default_socket_path(both) == Path("/run/user/7/pybatcher.sock")
    with pytest.raises(ConfigError, match=r"TMPDIR is '', .* give a path"):
        default_socket_path({})
    monkeypatch.setattr(sys, "platform", "linux")  # where everybody's files lie there
    with pytest.raises(ConfigError, match="XDG_RUNTIME_DIR"):
        default_socket_path({"TMPDIR": "/tmp"})
