"""Checkpoints of act-order, and the same ones whose inputs were put in order by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from quantised_files import Numbers, gptq, random_numbers
from safetensors.torch import load_file, save_file

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, GROUP = 128, 256, 4, 2, 64, 2, 32
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
}
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}
OUTPUTS = {
    "self_attn.q_proj": HEADS * HEAD_DIM,
    "self_attn.k_proj": KV_HEADS * HEAD_DIM,
    "self_attn.v_proj": KV_HEADS * HEAD_DIM,
    "self_attn.o_proj": HIDDEN,
    "mlp.gate_proj": INNER,
    "mlp.up_proj": INNER,
    "mlp.down_proj": HIDDEN,
}
Ints = NDArray[np.int64]


def inputs_of(name: str) -> int:
    if name == "self_attn.o_proj":
        return HEADS * HEAD_DIM
    return INNER if name == "mlp.down_proj" else HIDDEN


def in_heads() -> Ints:
    """Return groups that are spread within each head: even numbers in one, odd ones in the next."""
    within = np.arange(HEAD_DIM) % 2
    return (2 * np.arange(HEADS)[:, None] + within).reshape(-1)


def shuffled(n: int, seed: int) -> Ints:
    return np.random.default_rng(seed).permutation(np.arange(n) // GROUP)


@dataclass(frozen=True)
class Orders:
    """The group of each input of all modules that read the same; None: side by side."""

    hidden: Ints | None = None
    attended: Ints | None = None
    inner: Ints | None = None

    def of(self, name: str) -> Ints:
        n_in = inputs_of(name)
        found = {"self_attn.o_proj": self.attended, "mlp.down_proj": self.inner}
        groups = found.get(name, self.hidden)
        return np.arange(n_in) // GROUP if groups is None else groups


def sorted_inputs(groups: Ints | None, n: int) -> Ints:
    return np.arange(n) if groups is None else np.argsort(groups, kind="stable")


def taken(numbers: Numbers, rows: Ints, columns: Ints) -> Numbers:
    """Return some outputs of a module, and its inputs, in another order."""
    return Numbers(
        numbers.q[rows][:, columns],
        numbers.zeros[rows],
        numbers.scales[torch.from_numpy(rows)],
        numbers.group_of[columns],
    )


def write(directory: Path, target: Path, orders: Orders) -> Path:
    """Write "ordered", as a quantiser does, and "moved", the same put in order by hand."""
    rng = np.random.default_rng(3)
    tensors = load_file(directory / "model.safetensors")
    ordered, moved = {}, {}
    hidden = sorted_inputs(orders.hidden, HIDDEN)
    inner = sorted_inputs(orders.inner, INNER)
    attended = sorted_inputs(orders.attended, HEADS * HEAD_DIM)
    of_values = attended.reshape(HEADS, -1)[:KV_HEADS].reshape(-1)  # all heads alike
    rows = {"v_proj": of_values, "gate_proj": inner, "up_proj": inner}
    rows |= {"o_proj": hidden, "down_proj": hidden}
    columns = {"o_proj": attended, "down_proj": inner}
    for name, tensor in tensors.items():
        module, part = name.removesuffix(".weight"), name.split(".")[-2]
        if module.split(".", 3)[-1] not in OUTPUTS:
            ordered[name] = tensor
            # The residual stream is in the order of those who read it.
            moved[name] = tensor[..., torch.from_numpy(hidden)]
            continue
        layer = module.split(".", 3)[-1]
        numbers = random_numbers(rng, (OUTPUTS[layer], inputs_of(layer)), GROUP, symmetric=False)
        numbers = replace(numbers, group_of=orders.of(layer))
        n_out = np.arange(OUTPUTS[layer])
        by_hand = taken(numbers, rows.get(part, n_out), columns.get(part, hidden))
        ordered |= {f"{module}.{k}": v for k, v in gptq(numbers).items()}
        moved |= {f"{module}.{k}": v for k, v in gptq(by_hand, g_idx=False).items()}
    for kind, found in (("ordered", ordered), ("moved", moved)):
        shutil.copytree(directory, target / kind)
        save_file(
            {k: v.contiguous() for k, v in found.items()}, target / kind / "model.safetensors"
        )
        fields = json.loads((directory / "config.json").read_text())
        fields["quantization_config"] = CONFIG
        (target / kind / "config.json").write_text(json.dumps(fields))
    return target


ALL = Orders(shuffled(HIDDEN, 1), in_heads(), shuffled(INNER, 2))
