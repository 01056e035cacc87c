from __future__ import annotations

import pytest

from pybatcher.loading.parts.gguf_names import gguf_name

OWN = {
    "final_norm": "token_embd_norm",
    "gated_delta_net.o": "ssm_out",
    "gated_delta_net.decay": "ssm_a",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embedding", "token_embd.weight"),
        ("final_norm.bias", "output_norm.bias"),
        ("head.weight", "output.weight"),
        ("per_layer_embeddings.norm.weight", "per_layer_proj_norm.weight"),
        ("layers.12.q.bias", "blk.12.attn_q.bias"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert gguf_name(name) == expected


def test_an_architectures_own_names_come_first() -> None:
    assert gguf_name("final_norm.weight", OWN) == "token_embd_norm.weight"
    assert gguf_name("layers.0.gated_delta_net.o.weight", OWN) == "blk.0.ssm_out.weight"
    assert gguf_name("layers.0.gated_delta_net.decay", OWN) == "blk.0.ssm_a"
    assert gguf_name("layers.0.v.weight", OWN) == "blk.0.attn_v.weight"
