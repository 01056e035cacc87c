"""`pybatcher info` reads the headers of a model, here of one with 70B parameters."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Run

from pybatcher.models import tiny_path
from tests.support.vision_checkpoints import make_vision_checkpoint

HIDDEN, INNER, KV, VOCAB, LAYERS = 8192, 28672, 1024, 128256, 80
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
MEASURED = r"""
import re, sys
from pybatcher.cli import main
try:
    main()
finally:  # getrusage would count what the parent had before the program began
    peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]
    print("peak", peak, file=sys.stderr)
"""


def shapes_of_llama_70b() -> Iterator[tuple[str, list[int]]]:
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for part, shape in {
            "self_attn.q_proj": [HIDDEN, HIDDEN],
            "self_attn.k_proj": [KV, HIDDEN],
            "self_attn.v_proj": [KV, HIDDEN],
            "self_attn.o_proj": [HIDDEN, HIDDEN],
            "mlp.gate_proj": [INNER, HIDDEN],
            "mlp.up_proj": [INNER, HIDDEN],
            "mlp.down_proj": [HIDDEN, INNER],
            "input_layernorm": [HIDDEN],
            "post_attention_layernorm": [HIDDEN],
        }.items():
            yield f"{at}{part}.weight", shape
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


@pytest.fixture(params=[0, 1], ids=["aligned", "odd"])
def llama_70b(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A checkpoint with the header of Llama 70B, whose weights are a hole in the file."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_path() / name, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    header, end = {}, 0
    for name, shape in shapes_of_llama_70b():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + request.param)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return tmp_path


def test_a_model_of_70b_takes_little_memory(llama_70b: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    outcome = subprocess.run(
        [sys.executable, "-c", MEASURED, "info", "--model", str(llama_70b), "--n-ctx", "1000000"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"COLUMNS": "200", "XDG_CACHE_HOME": str(cache)},
    )
    facts = dict(line.split("  ", 1) for line in outcome.stdout.splitlines() if "  " in line)
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["parameters"] == "70,553,706,496"
    weights = float(facts["weights"].removesuffix(" GiB"))  # 12 or 16 bits a weight, by the CPU
    assert 98 < weights < 132
    assert facts["KV"].startswith("305.2 GiB, n_ctx 1,000,000")
    assert float(facts["memory needed"].split()[0]) == pytest.approx(weights + 305.5, abs=0.2)
    assert "GiB" in facts["memory free"]
    assert facts["verdict"].startswith("it does not fit: ")
    assert facts["tools"] == "yes"
    assert facts["thinking"] == facts["images"] == "no"
    peak = int(outcome.stderr.rsplit("peak ", 1)[1])
    assert peak < 300_000  # KiB
    assert not cache.exists()


def test_thinking_and_tools_are_those_of_the_template(run: Run, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_path(), tmp_path / "model")
    settings = json.loads((path / "tokenizer_config.json").read_text())

    def facts(template: str | None) -> dict[str, str]:
        settings["chat_template"] = template
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        lines = run("info", "--model", str(path)).stdout.splitlines()
        return {line[:18].strip(): line[18:].strip() for line in lines}

    template = "{% if enable_thinking %}<think>{% endif %}{{ messages }}{{ mytools }}"
    assert facts(template)["thinking"] == "yes, enable_thinking"
    assert facts(template)["tools"].startswith("no")
    assert facts("<think></think>{{ tools }}")["thinking"] == "yes"
    assert facts("<think></think>{{ tools }}")["tools"] == "yes"
    assert facts(None)["chat template"].startswith("none")


def test_the_vision_tower_and_its_memory_are_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model"
    make_vision_checkpoint(path, "qwen3_vl")

    def facts(*options: str) -> dict[str, str]:
        lines = run("info", "--model", str(path), *options).stdout.splitlines()
        return {line[:18].strip(): line[18:].strip() for line in lines}

    shown, without = facts(), facts("--no-vision")
    assert shown["images"] == "yes"
    assert " layers of " in shown["vision tower"]
    assert shown["vision tower"].endswith("B of weights")
    assert not shown["vision tower"].endswith(" 0 B of weights")
    assert without["images"] == "no"
    assert "vision tower" not in without
    settings = json.loads((path / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (path / "chat_template.jinja").unlink(missing_ok=True)
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    assert facts()["images"].startswith("no: the chat template")
