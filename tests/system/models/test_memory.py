"""What a model takes in memory: its weights, its KV and little more, while it is loaded too, and no
longer than until it is closed.

Measured in a process of its own, by the kernel's count of resident pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.convert import make_checkpoint
from bench.convert.shapes import SHAPES

MARGIN = 200 * 2**20  # for the interpreter, its libraries and the buffers of a pass
# Narrow and shallow, with more memory than the margin: what is in memory twice is noticed.
SHAPE: dict[str, Any] = SHAPES["llama-3.2-1b"] | {
    "vocab_size": 48_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 7,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
LOAD = """
import json, sys
from pybatcher.engine import Engine

def memory():
    lines = (line.split() for line in open("/proc/self/status"))
    return {line[0][:-1]: int(line[1]) * 1024 for line in lines if line[0].startswith("Vm")}

path, dtype, place, n_tokens = sys.argv[1:]
peaks = []
engine = Engine.load(path, dtype=dtype, n_ctx=4096, weights_cache=place,
                     progress=lambda done, total: peaks.append((memory()["VmRSS"], done, total)))
facts = engine.description() | {"resident": memory()["VmRSS"], "peak": memory()["VmHWM"]}
facts["loading"] = max(peaks)[0]
facts["checkpoint"] = peaks[-1][2]
seq_id = engine.seq_new()
engine.prefill_chunk(seq_id, list(range(int(n_tokens))), logits=True)
engine.decode_batch([seq_id], [1])
facts["after_a_step"] = memory()["VmHWM"]
before = memory()["VmRSS"]
engine.close()
facts["given_back"] = before - memory()["VmRSS"]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(SHAPE))
    with pytest.MonkeyPatch.context() as patch:  # of one number: random ones take longer to make
        patch.setattr(make_checkpoint, "random_bf16", lambda *a: np.full(a[1], 0x3C12, np.uint16))
        make_checkpoint.write_safetensors(path / "model.safetensors", SHAPE, seed=0)
    return path


def load(checkpoint: Path, dtype: str, place: str, n_tokens: int) -> dict[str, Any]:
    arguments = [sys.executable, "-c", LOAD, str(checkpoint), dtype, place, str(n_tokens)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the Linux kernel")
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_weights_kv_and_little_more(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    # More tokens than a pass has rows; then few: they read all that is mapped too.
    for state, n_tokens in (("written", 600), ("mapped or copied", 8)):
        facts = load(checkpoint, dtype, str(tmp_path), n_tokens)
        assert facts["weights_cache"] in state
        needed = facts["weight_bytes"] + facts["kv_bytes"]
        assert facts["resident"] < needed + MARGIN
        assert facts["after_a_step"] < needed + MARGIN
        # Of the checkpoint, no more than one matrix is in memory at a time.
        assert facts["weight_bytes"] > MARGIN or dtype == "int8"
        assert facts["peak"] < needed + MARGIN
        assert facts["loading"] < 1.1 * facts["checkpoint"] + MARGIN / 2
        assert facts["given_back"] > 0.9 * needed
