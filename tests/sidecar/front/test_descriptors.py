"""The limit of open files: raised where connections need it, never lowered."""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Iterator

import pytest

from pybatcher.sidecar.front.descriptors import SpareDescriptors, allow_descriptors


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The limits that are set, the last one at the end; at first 1024 of at most 4096 files."""
    found = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    return found


def test_few_connections_change_nothing(limits: list[tuple[int, int]]) -> None:
    allow_descriptors(768)
    assert limits == [(1024, 4096)]


def test_more_raise_the_soft_limit(limits: list[tuple[int, int]]) -> None:
    allow_descriptors(1000)
    assert limits[-1] == (1256, 4096)


def test_the_hard_limit_stays_and_is_said(
    limits: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        allow_descriptors(10_000)
    assert limits[-1] == (4096, 4096)
    assert "max_connections needs 10256 open files, and 4096 are allowed" in caplog.text


def test_without_a_hard_limit_all_are_allowed(limits: list[tuple[int, int]]) -> None:
    limits[0] = (1024, resource.RLIM_INFINITY)
    allow_descriptors(10_000)
    assert limits[-1] == (10_256, resource.RLIM_INFINITY)
    limits[:] = [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
    allow_descriptors(10_000)
    assert len(limits) == 1


def test_a_system_that_allows_fewer_than_its_hard_limit_says(
    limits: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(which: int, pair: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    limits[0] = (256, resource.RLIM_INFINITY)
    with caplog.at_level(logging.WARNING):
        allow_descriptors(1000)
    assert "needs 1256 open files, and 256 are allowed" in caplog.text


def test_spare_descriptors_are_free_while_they_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = SpareDescriptors(3)
    held = list(spare._held)
    with spare.lent():
        again = [os.open(os.devnull, os.O_RDONLY) for _ in held]
        assert sorted(again) == sorted(held)
    for one in again:
        os.close(one)
    assert len(spare._held) == 3

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as patch, spare.lent():
        patch.setattr(os, "open", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with spare.lent():
            pass
        assert spare._held == []  # others have them
    spare.refill()
    assert len(spare._held) == 3
    spare.close()
    assert spare._held == []
