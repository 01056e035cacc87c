from __future__ import annotations

from pybatcher.loading.checkpoints.gated_delta_net import DeltaConfig


def test_widths() -> None:
    delta = DeltaConfig(
        n_key_heads=2, n_value_heads=6, key_dim=12, value_dim=20, conv_size=4, in_layer=(True,)
    )
    assert (delta.key_size, delta.value_size, delta.n_channels) == (24, 120, 168)
