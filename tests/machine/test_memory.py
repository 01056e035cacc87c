from __future__ import annotations

import pytest

from pybatcher.errors import EngineError
from pybatcher.machine import memory
from pybatcher.machine.memory import MemoryNeed, size_text

GIB = 2**30


def need(available: int, *, kv: int = 2 * GIB) -> MemoryNeed:
    return MemoryNeed(weights=4 * GIB, kv=kv, buffers=GIB, available=available, n_ctx=8192)


def test_it_fits_up_to_the_last_byte() -> None:
    need(7 * GIB).check("m")
    assert not need(7 * GIB - 1).fits


def test_a_context_that_fits_is_named() -> None:
    assert need(6 * GIB).most_tokens == 4096
    with pytest.raises(EngineError, match=r"/m: takes 7\.0 GiB .*KV of n_ctx=8192 2\.0 GiB") as e:
        need(6 * GIB).check("/m")
    assert "6.0 GiB are free; give an n_ctx of at most 4096" in str(e.value)
    assert "overcommit=True" in str(e.value)
    assert e.value.field == "n_ctx"


def test_without_room_for_weights_a_smaller_model_is_the_remedy() -> None:
    for available in (0, 5 * GIB):
        with pytest.raises(EngineError, match=r"smaller dtype .* or a smaller model") as error:
            need(available).check("m")
        assert error.value.field == "model"


def test_unreported_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_IS_REPORTED", False)
    need(0).check("m")


def test_sizes() -> None:
    assert size_text(3 * 2**19) == "1.5 MiB"
    assert size_text(5 * 2**39) == "2,560.0 GiB"
