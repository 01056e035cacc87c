"""The model configuration has the same fields in Python and in the compiled engine."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest

from pybatcher import _core, errors
from pybatcher.loading import ModelConfig, VisionConfig, open_model
from pybatcher.loading.checkpoints.limits import Range
from pybatcher.testing.checkpoints import make_checkpoint

OPTIONS = {
    "dtype": "f32",
    "kv_dtype": "f32",
    "device": "cpu",
    "n_ctx": 64,
    "n_parallel": 1,
    "n_ubatch": 16,
    "n_threads": 1,
    "block_size": 16,
}
SCALARS = (bool, int, float, str)


def parts_of(owner: type) -> dict[str, type]:
    """Return the dataclasses that fields of `owner` hold, alone or in a tuple, by field name."""
    found = {}
    for name, hint in get_type_hints(owner).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
                found[name] = kind
    return found


def rows_of(owner: str, kind: type) -> list[dict[str, Any]]:
    """Return the scalar fields of a dataclass as `_core.config_fields()` has them, but meanings."""
    rows = []
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, limits, choices = hints[field.name], Range(None), ()  # type: ignore[arg-type]
        if get_origin(hint) is Annotated:
            hint, limits = get_args(hint)
        if get_origin(hint) is Literal:
            hint, choices = str, get_args(hint)
        if hint not in SCALARS:
            continue
        rows.append(
            {
                "owner": owner,
                "name": field.name,
                "type": hint.__name__,
                "is_required": field.default is MISSING,
                "default": None if field.default is MISSING else field.default,
                **limits._asdict(),
                "choices": choices,
            }
        )
    return rows


def test_python_and_the_engine_have_the_same_fields() -> None:
    expected = rows_of("", ModelConfig)
    for name, kind in parts_of(ModelConfig).items():
        expected += rows_of(name, kind)
    expected += rows_of("vision", VisionConfig)
    of_vision = parts_of(VisionConfig)
    for name in ("projector", "deepstack"):
        expected += rows_of(f"vision.{name}", of_vision[name])
    linears = parts_of(of_vision["projector"])["linears"]
    expected += rows_of("vision.projector.linears", linears)
    found = _core.config_fields()
    assert all(row.pop("meaning") for row in found)
    by_name = typing.cast("Any", lambda row: (row["owner"], row["name"]))
    assert sorted(found, key=by_name) == sorted(expected, key=by_name)


def numbers(*, of_vision: bool = False) -> list[dict[str, Any]]:
    return [
        row
        for row in _core.config_fields()
        if row["type"] in ("int", "float") and row["owner"].startswith("vision") == of_vision
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the fields of a model that has every part."""
    path = make_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    found = open_model(Path(path)).config
    shape = found.shape(0)
    found = replace(found, layer_shapes=(shape,) * found.n_layers)
    moe = {"n_experts": 4, "n_experts_per_row": 2, "intermediate_size": 8, "normalised": True}
    scales = {"swiglu_limit": 0.0, "swiglu_alpha": 1.0, "weight_scale": 1.0}
    flags = {"beside_mlp": False, "shared_expert": False, "shared_gate": True, "sigmoid": False}
    layers = (True,) + (False,) * (found.n_layers - 1)
    sizes = {"n_key_heads": 2, "n_value_heads": 2, "key_dim": 8, "value_dim": 8, "conv_size": 4}
    return {
        **asdict(found),
        "moe": {**moe, **scales, **flags, "in_layer": layers},
        "gated_delta_net": {**sizes, "in_turn": False, "in_layer": layers},
    }


def outside(row: dict[str, Any]) -> list[float]:
    """Return numbers outside of the range of a field."""
    bad = [float("nan"), float("inf")] if row["type"] == "float" else []
    kind = float if row["type"] == "float" else int
    if row["low"] is not None:
        bad.append(kind(row["low"]) if row["excludes_low"] else kind(row["low"] - 1))
    if (row["owner"], row["name"]) == ("moe", "n_experts"):
        bad = [-1]  # with 0 experts, in_layer is refused
    if row["high"] is not None:
        bad.append(row["high"] + 1)
    assert bad
    return bad


@pytest.mark.parametrize("row", numbers(), ids=lambda row: f"{row['owner']}.{row['name']}")
def test_numbers_outside_of_their_range_are_refused_by_name(
    config: dict[str, Any], row: dict[str, Any]
) -> None:
    owner, name = row["owner"], row["name"]
    if owner == "short_conv":
        part = {"conv_size": 3, "in_layer": config["gated_delta_net"]["in_layer"]}
        config = {**config, "gated_delta_net": None, "short_conv": part}
    for value in outside(row):
        changed: Any = {name: value}
        if owner and isinstance(config[owner], dict):
            changed = {owner: {**config[owner], name: value}}
        elif owner:
            changed = {owner: [{**part, name: value} for part in config[owner]]}
        field = rf"config\.{owner}\.{name}" if owner else rf"config\.{name}"
        with pytest.raises(errors.ModelFormatError, match=rf"{field} is .*; it must be "):
            _core.Engine({**config, **changed}, {}, **OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row", numbers(of_vision=True), ids=lambda row: f"{row['owner']}.{row['name']}"
)
def test_numbers_of_a_tower_outside_of_their_range_are_refused_by_name(
    config: dict[str, Any], row: dict[str, Any]
) -> None:
    projector = {
        "group": 1,
        "norm_eps": 1e-6,
        "linears": [{"n_out": 8, "activation": "none"}],
        "pool": "concat",
        "scale": 1.0,
        "norm_before": "none",
        "norm_after": "none",
    }
    vision = {
        "layers": {**config, "layer_shapes": (), "moe": None, "gated_delta_net": None},
        "patch_size": 12,
        "projector": projector,
        "n_positions": 0,
        "pre_norm": False,
        "final_norm": False,
        "deepstack": [{"layer": 0, "projector": projector}],
        "windowed_layers": (),
    }
    vision["layers"] = {**vision["layers"], "causal": False}  # type: ignore[dict-item]
    owner, name = row["owner"].removeprefix("vision").removeprefix("."), row["name"]
    for value in outside(row):
        changed: Any = {name: value}
        if owner == "projector":
            changed = {"projector": {**projector, name: value}}
        elif owner == "projector.linears":
            changed = {
                "projector": {**projector, "linears": [{**projector["linears"][0], **changed}]}
            }  # type: ignore[index]
        elif owner == "deepstack":
            changed = {"deepstack": [{**vision["deepstack"][0], name: value}]}  # type: ignore[index]
        field = rf"config\.{row['owner']}\.{name}"
        with pytest.raises(errors.ModelFormatError, match=rf"{field} is .*; it must be "):
            _core.Engine(config, {}, vision={**vision, **changed}, **OPTIONS)  # type: ignore[arg-type]


def test_all_parts_are_compared() -> None:
    assert isinstance(get_type_hints(ModelConfig)["moe"], types.UnionType)
    assert set(parts_of(ModelConfig)) == {
        "ropes",
        "layer_shapes",
        "moe",
        "gated_delta_net",
        "short_conv",
    }
