"""Weights and configurations that no loader would hand over: refused by name, or harmless."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacked_engine import OPTIONS, PROMPT

from pybatcher import _core, errors
from pybatcher.engine import Engine
from pybatcher.loading import LoadedModel, Tensor, from_torch
from pybatcher.loading.checkpoints import limits
from pybatcher.loading.checkpoints.rope import Rope
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_module

MOE = {
    "n_experts": 4,
    "n_experts_per_row": 2,
    "intermediate_size": 8,
    "normalised": True,
    "in_layer": (True,) * 3,
}


def build(model: LoadedModel, **replaced: Tensor | None) -> Engine:
    """An engine from the model with some tensors replaced or, where None, left out."""
    tensors: dict[str, Any] = dict(model.tensors)
    for name, tensor in replaced.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    pairs = {name: (tensor.array, tensor.dtype) for name, tensor in tensors.items()}
    return Engine(asdict(model.config), pairs, **OPTIONS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    ["token_embedding", "layers.1.k.weight", "layers.2.down.weight", "layers.0.q_norm.weight"],
)
def test_weights_that_are_not_finite(model: LoadedModel, name: str, value: float) -> None:
    array = model.tensors[name].array.copy()
    array[-1] = value
    with pytest.raises(errors.ModelFormatError, match=name) as raised:
        build(model, **{name: Tensor(array, "f32", "a test")})
    assert str(raised.value).endswith("take another copy of it")


def test_a_weight_that_is_too_large_for_its_dtype(model: LoadedModel) -> None:
    """Only where another dtype helps is one named."""
    array = model.tensors["layers.1.k.weight"].array.copy()
    array[-1] = 3.4e38
    tensors = {"layers.1.k.weight": Tensor(array, "f32", "a test")}
    build(model, **tensors).close()
    pairs = {
        name: (tensor.array, tensor.dtype) for name, tensor in {**model.tensors, **tensors}.items()
    }
    with pytest.raises(errors.ModelFormatError, match=r"overflows bf16; .* needs dtype='f32'"):
        Engine(asdict(model.config), pairs, **{**OPTIONS, "dtype": "bf16"})


def test_the_message_names_the_model(tmp_path: Path) -> None:
    module = make_module("gpt2")
    module.transformer.h[1].mlp.c_fc.bias.data[3] = float("nan")
    model = from_torch(module)
    with pytest.raises(errors.ModelFormatError, match=r"GPT2LMHeadModel: .*layers\.1\.up\.bias"):
        Engine.from_loaded(model, EngineConfig(n_ctx=64))
    module.save_pretrained(tmp_path)
    with pytest.raises(errors.ModelFormatError, match=f"{tmp_path}: .*up"):
        Engine.load(tmp_path, n_ctx=64)


def test_logits_that_overflow(model: LoadedModel) -> None:
    """Finite weights, infinite logits: the calls fail, the sequences stay."""
    array = np.full_like(model.tensors["final_norm.weight"].array, 3e38)
    engine = build(model, **{"final_norm.weight": Tensor(array, "f32", "a test")})
    seq_id = engine.seq_new()
    for call in (
        lambda: engine.prefill_chunk(seq_id, PROMPT, logits=True),
        lambda: engine.decode_batch([seq_id], [1]),
    ):
        with pytest.raises(errors.EngineError, match="finite") as raised:
            call()
        assert "dtype='f32'" not in str(raised.value)  # which it has
        assert engine.seq_length(seq_id) == 0
    scored, pooled = engine.seq_new(), engine.seq_new()
    results = engine.run_step(
        [
            (seq_id, (1, 2), True),
            (scored, (1, 2), False, 0, (3,), None, 2),
            (pooled, (1, 2), False, 0, (), "mean"),
        ]
    )
    assert [result[0] for result in results] == [seq_id, scored, pooled]
    for failed_id, sampled, why, logprobs, top_logprobs, embedding in results:
        assert sampled == logprobs == top_logprobs == ()
        assert embedding is None
        assert why is not None
        assert "finite" in why
        assert engine.seq_length(failed_id) == 2
    engine.check_integrity()
    engine.close()


def test_missing_and_misshapen_tensors(model: LoadedModel) -> None:
    for name in ("token_embedding", "layers.1.v.weight", "final_norm.weight"):
        with pytest.raises(errors.ModelFormatError, match=rf"{name}.*missing"):
            build(model, **{name: None})
        array = model.tensors[name].array[:-1]
        with pytest.raises(errors.ModelFormatError, match=rf"{name}.*expected"):
            build(model, **{name: Tensor(array, "f32", "a test")})
    with pytest.raises(errors.ModelFormatError, match="no place"):
        build(model, extra=Tensor(np.zeros(3, np.float32), "f32", "a test"))


@pytest.mark.parametrize(
    "pair",
    [
        None,
        (),
        (1, 2),
        (np.zeros(48), "f32"),
        (np.zeros(48, np.float32), "f64"),
        (np.zeros(48, np.float32), "bf16"),
        (np.zeros(48, np.uint16), "f32"),
        (np.zeros(48, ">f4"), "f32"),
        (np.zeros((48, 1, 1), np.float32), "f32"),
        (np.float32(3), "f32"),
        ([0.0] * 48, "f32"),
    ],
    ids=str,
)
def test_pairs_that_are_no_tensors(model: LoadedModel, pair: Any) -> None:
    pairs: dict[str, Any] = {name: (t.array, t.dtype) for name, t in model.tensors.items()}
    pairs["final_norm.weight"] = pair
    with pytest.raises(errors.ModelFormatError, match="final_norm"):
        _core.Engine(asdict(model.config), pairs, **OPTIONS)


def test_odd_addresses_and_strides(model: LoadedModel) -> None:
    """A mapped file may put a tensor anywhere; views may be transposed, reversed, broadcast."""
    replaced = {}
    for i, (name, tensor) in enumerate(model.tensors.items()):
        array = tensor.array
        if i % 3 == 0:
            raw = np.frombuffer(b"\0" + array.tobytes(), dtype=np.uint8)[1:]
            array = raw.view(np.float32).reshape(array.shape)
            assert array.ctypes.data % 4 == 1
        elif i % 3 == 1:
            array = np.asfortranarray(array)
        else:
            array = array[::-1].copy()[::-1]
        replaced[name] = Tensor(array, "f32", "a test")
    plain, odd = build(model), build(model, **replaced)
    expected = plain.prefill_chunk(plain.seq_new(), PROMPT, logits=True)
    logits = odd.prefill_chunk(odd.seq_new(), PROMPT, logits=True)
    np.testing.assert_array_equal(logits, expected)
    plain.close()
    odd.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 2**40),
        ("vocab_size", "384"),
        ("hidden_size", -48),
        ("n_layers", 4),
        ("n_heads", 5),
        ("n_kv_heads", 0),
        ("head_dim", 2**31 - 1),
        ("max_position_embeddings", 0),
        ("norm", "batch"),
        ("norm_eps", float("nan")),
        ("activation", None),
        ("position", "alibi"),
        ("ropes", ()),
        ("ropes", (asdict(Rope((1.0,), 1.0)),)),
        ("ropes", (asdict(Rope((float("inf"),) * 10, 1.0)),)),
        ("ropes", (asdict(Rope((1.0,) * 10, 1.0, long_inv_freq=(1.0,) * 10)),)),
        ("ropes", (asdict(Rope((1.0,) * 10, 1.0, query_beta=float("nan"))),)),
        ("ropes", ({"inv_freq": (1.0,) * 10, "attention_factor": 1.0},)),
        ("ropes", ("rope",)),
        ("layer_ropes", (1,) * 3),
        ("layer_ropes", (0,)),
        ("attention_scale", float("inf")),
        ("sliding_windows", ()),
        ("sliding_windows", (-1, 0, 0)),
        ("pre_norm", "yes"),
        ("post_norm", True),  # without the tensors
        ("whole_qk_norm", "no"),
        ("embedding_scale", float("nan")),
        ("attention_softcap", -1.0),
        ("logit_scale", 0.0),
        ("logit_softcap", float("inf")),
        ("moe", 3),
        ("moe", {"n_experts": 4}),
        ("moe", {**MOE, "n_experts": 10**6}),
        ("moe", {**MOE, "n_experts": 0}),
        ("moe", {**MOE, "n_experts_per_row": 5}),
        ("moe", {**MOE, "in_layer": (True,)}),
        ("moe", MOE),  # of which there are no weights
    ],
)
def test_configurations_that_do_not_fit(model: LoadedModel, field: str, value: object) -> None:
    pairs = {name: (tensor.array, tensor.dtype) for name, tensor in model.tensors.items()}
    with pytest.raises(errors.ModelFormatError):
        _core.Engine({**asdict(model.config), field: value}, pairs, **OPTIONS)
    incomplete = asdict(model.config)
    del incomplete[field]
    with pytest.raises(errors.ModelFormatError, match=field):
        _core.Engine(incomplete, pairs, **OPTIONS)


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("vocab_size", limits.MAX_VOCABULARY),
        ("hidden_size", limits.MAX_WIDTH),
        ("n_layers", limits.MAX_LAYERS),
        ("n_heads", limits.MAX_HEADS),
        ("head_dim", limits.MAX_HEAD_DIM),
        ("intermediate_size", limits.MAX_WIDTH),
        ("max_position_embeddings", limits.MAX_POSITIONS),
    ],
)
def test_what_the_loader_lets_through_is_in_the_range_of_the_engine(
    model: LoadedModel, field: str, limit: int
) -> None:
    """The loader names the file and its field, so that it is the one to refuse."""
    with pytest.raises(errors.ModelFormatError, match=rf"{field} is .* from 1 to \d+$") as refused:
        _core.Engine({**asdict(model.config), field: 2**31 - 1}, {}, **OPTIONS)
    assert limit <= int(str(refused.value).rpartition(" ")[2])


def test_model_directories_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", Path("/dev/null"), "\0", ""):
        with pytest.raises(errors.ModelFormatError):
            Engine.load(path)
