from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pybatcher.loading import open_model
from pybatcher.loading.checkpoints.short_conv import ShortConvConfig
from pybatcher.testing.checkpoints import make_checkpoint


def test_which_layers_are_recurrent(tmp_path: Path) -> None:
    config = open_model(make_checkpoint(tmp_path, "lfm2", tokenizer=False)).config
    assert config.short_conv == ShortConvConfig(conv_size=3, in_layer=(True, False, True, True))
    assert config.recurrent_layers == (True, False, True, True)
    assert replace(config, short_conv=None).recurrent_layers == (False,) * 4
