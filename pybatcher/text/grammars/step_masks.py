"""`StepMasks`: computes the masks of a step, on another thread if they take long."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from .grammar_step import GrammarJob
from .matcher import ANY_TOKEN

__all__ = ["MaskMemory", "StepMasks"]

_AT_ONCE = 2e-4  # seconds
_DECAY = 0.8  # decay of the slowest time with each step

_Job = tuple[GrammarJob, int]


class MaskMemory(Protocol):
    """Memory for masks (n_rows, row_bytes), and a gate that the step waits for."""

    @property
    def n_rows(self) -> int:
        """Number of masks."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a mask."""

    @property
    def address(self) -> int:
        """The address of the first mask."""

    def close(self) -> None:
        """Lock it for writing; a step waits from now on."""

    def open(self) -> None:
        """Let the step continue."""


class StepMasks:
    """Fills masks on one background thread, where llguidance uses as many threads as there are
    cores.
    """

    def __init__(self) -> None:
        from llguidance import LLExecutor

        self._executor = LLExecutor()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pybatcher-masks")
        self._slowest = _AT_ONCE  # seconds of the slowest recent masks

    def begin(self, memory: MaskMemory, jobs: Sequence[_Job]) -> Future[None]:
        """Fill the masks of a step; opens `memory` when all are filled, or on a failure.

        jobs: each sequence's job, and its first row in `memory`: each token of its draft has a row
            after the first.
        Until the future is done, neither the matchers nor `memory` may be used. Masks that take no
        longer than another thread takes to begin are filled at once.
        """
        if self._slowest < _AT_ONCE:
            done: Future[None] = Future()
            try:
                self._fill(memory, jobs)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)
            return done
        memory.close()
        try:
            return self._thread.submit(self._fill, memory, jobs)
        except BaseException:
            memory.open()
            raise

    def close(self) -> None:
        """End the thread after its current work."""
        self._thread.shutdown(wait=False)

    def _fill(self, memory: MaskMemory, jobs: Sequence[_Job]) -> None:
        began = time.perf_counter()
        try:
            alone: list[tuple[Any, int]] = []
            with_drafts: list[tuple[Any, int, list[int]]] = []
            for job, row in jobs:
                if ANY_TOKEN not in job.only:
                    continue
                if job.draft:
                    with_drafts.append((job.matcher.matcher, row, list(job.draft)))
                else:
                    alone.append((job.matcher.matcher, row))
            where = (memory.address, memory.row_bytes, memory.n_rows)
            if alone:
                self._executor.unsafe_compute_mask_ptr(alone, *where)
            if with_drafts:
                self._executor.unsafe_compute_mask_ptr_with_draft_token(with_drafts, *where)
            for job, row in jobs:
                for i, token in enumerate(job.only, start=row):
                    if token != ANY_TOKEN:
                        _allow_only(token, memory.address + i * memory.row_bytes, memory.row_bytes)
        finally:
            self._slowest = max(time.perf_counter() - began, self._slowest * _DECAY)
            memory.open()


def _allow_only(token: int, address: int, n_bytes: int) -> None:
    """Write a mask that allows one token."""
    ctypes.memset(address, 0, n_bytes)
    ctypes.c_uint8.from_address(address + token // 8).value = 1 << token % 8
