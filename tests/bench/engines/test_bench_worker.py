from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.convert import make_checkpoint
from bench.convert.shapes import SHAPES
from bench.engines.engine_list import PYBATCHER
from bench.engines.interface import Settings
from bench.engines.worker import Worker

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SETTINGS = Settings(dtype="f32", n_ctx=1024, n_parallel=4, n_threads=1, n_batch=64)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(make_checkpoint, "CHECKPOINTS", tmp_path)
    monkeypatch.setitem(SHAPES, "smollm2-135m", SHAPES["smollm2-135m"] | SMALL)
    return make_checkpoint.make_checkpoint("smollm2-135m")


def worker(module: str, checkpoint: Path, settings: Settings = SETTINGS) -> Worker:
    return Worker(PYBATCHER.name, PYBATCHER.python, module, checkpoint, settings)


def test_a_stepped_engine_in_its_process(checkpoint: Path, tmp_path: Path) -> None:
    asked = worker(PYBATCHER.stepped_module, checkpoint)
    assert asked.ask("facts")["dtype"] == "f32"
    assert asked.ask("prefill", n_tokens=100) > 0.0
    asked.ask("extend", first=0, count=1, n_tokens=5)
    asked.ask("extend", first=1, count=3, n_tokens=5)
    assert len(asked.ask("steps", count=3)) == 3
    asked.ask("clear")
    sequences = [[1, 2, 3, 4], [9, 8, 7, 6]]
    path = str(tmp_path / "logits.npy")
    asked.ask("logits", sequences=sequences, path=path)
    logits = np.load(path)
    assert logits.shape == (2, 4, 300)
    last = asked.ask("last_logits", n_tokens=20)
    assert len(last) == 300
    asked.close()
    with pytest.raises(ValueError, match="closed file"):
        asked.ask("facts")


def test_a_worker_that_ends_is_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = worker(PYBATCHER.stepped_module, tmp_path)
    with pytest.raises(RuntimeError, match="the worker of pybatcher ended with 1"):
        asked.ask("facts")
    asked.close()
    assert "config.json" in capfd.readouterr().err


def test_the_batcher_serves_arrivals(checkpoint: Path) -> None:
    asked = worker(PYBATCHER.server_module, checkpoint, replace(SETTINGS, share_prefixes=True))
    arrivals = [
        {"at": 0.0, "tokens": list(range(80)), "n_new": 3, "n_shared": 70},
        {"at": 0.05, "tokens": [*range(70), 1, 2], "n_new": 2, "n_shared": 70},
    ]
    times = asked.ask("serve", arrivals=arrivals)
    assert [len(t) for t in times] == [3, 2]
    assert all(t == sorted(t) for t in times)
    assert times[0][0] > 0.0
    assert times[1][0] >= 0.05
    asked.close()
