from __future__ import annotations

from pybatcher.loading.checkpoints.gated_delta_net import GatedDeltaNetConfig


def test_widths() -> None:
    gated_delta_net = GatedDeltaNetConfig(
        n_key_heads=2, n_value_heads=6, key_dim=12, value_dim=20, conv_size=4, in_layer=(True,)
    )
    assert (gated_delta_net.key_size, gated_delta_net.value_size, gated_delta_net.n_channels) == (
        24,
        120,
        168,
    )
