"""Vision towers of GGUF models: the oracle is the same checkpoint as safetensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf
from gguf_vision import write_mmproj, write_text_gguf
from transformers import Qwen3VLForConditionalGeneration

from pybatcher.errors import ModelFormatError
from pybatcher.images import ImageLimits, read_image
from pybatcher.loading import LoadedModel, open_model
from pybatcher.loading.gguf.model import open_gguf
from pybatcher.testing.checkpoints import make_checkpoint
from tests.support.vision_models import CASES, randomise

LIMITS = ImageLimits(max_images=4, max_pixels=2**20, max_bytes=2**20)
KINDS = {Kind.F16: "f16", Kind.BF16: "bf16"}
"""The kinds of the matrices of mmproj files, and the dtypes of the tensors."""


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_5"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint, and the GGUF file of its language model."""
    folder = tmp_path_factory.mktemp(request.param)
    CASES[request.param].make().save_pretrained(folder / "hf")
    size = {"shortest_edge": 64 * 8**2, "longest_edge": 4096 * 8**2}
    settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": size, "patch_size": 4}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    write_text_gguf(folder / "hf", folder / "model.gguf")
    return folder


@pytest.fixture(scope="module")
def expected(saved: Path) -> LoadedModel:
    return open_model(saved / "hf")


@pytest.fixture
def opened(saved: Path, tmp_path: Path) -> Callable[..., LoadedModel]:
    """Return a function that opens the model with a changed mmproj file."""

    def opened(**changes: Any) -> LoadedModel:
        tower = write_mmproj(saved / "hf", tmp_path / "tower.gguf", **changes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return open_gguf(saved / "model.gguf", mmproj=tower)

    return opened


def tower_of(model: LoadedModel) -> dict[str, Any]:
    return {name: tensor for name, tensor in model.tensors.items() if name.startswith("tower.")}


def test_a_plain_file_is_the_checkpoint(
    opened: Callable[..., LoadedModel], expected: LoadedModel
) -> None:
    found = opened()
    assert found.vision == expected.vision
    config = found.config
    assert config.ropes == expected.config.ropes
    assert config.takes_images
    assert config.deepstack_layers == expected.config.deepstack_layers
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in tower_of(expected).items():
        assert found.tensors[name].dtype == "f32"
        assert np.array_equal(found.tensors[name].array, tensor.array), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kinds_of_numbers(
    kind: Kind, opened: Callable[..., LoadedModel], expected: LoadedModel
) -> None:
    found = opened(kind=kind)
    kinds = {name: tensor.dtype for name, tensor in tower_of(found).items() if ".q.weight" in name}
    assert {*kinds.values()} == {KINDS[kind]}
    for name, tensor in tower_of(expected).items():
        values = torch.from_numpy(np.array(tensor.array))
        own = found.tensors[name]
        if own.dtype == "f32":
            assert np.array_equal(own.array, values.numpy()), name
        elif own.dtype == "f16":
            assert np.array_equal(own.array, values.half().numpy()), name
        else:
            assert np.array_equal(own.array, values.bfloat16().view(torch.uint16).numpy()), name


def test_matrices_in_blocks(tmp_path: Path) -> None:
    config = CASES["qwen3_vl"].make().config
    config.vision_config.hidden_size, config.vision_config.intermediate_size = 64, 96
    randomise(Qwen3VLForConditionalGeneration(config)).save_pretrained(tmp_path / "hf")
    path = write_text_gguf(tmp_path / "hf", tmp_path / "model.gguf")
    tower = write_mmproj(tmp_path / "hf", tmp_path / "tower.gguf", Kind.Q8_0)
    found, expected = open_model(path, mmproj=tower), open_model(tmp_path / "hf")
    blocks = [name for name, tensor in tower_of(found).items() if tensor.dtype == "int8"]
    assert len(blocks) == 3 * 6 + 2 + 2 * 2
    for name in blocks:
        values = gguf.quants.quantize(np.array(expected.tensors[name].array), Kind.Q8_0)
        assert np.array_equal(found.tensors[name].array, values), name


def test_an_image_is_prepared_as_for_the_checkpoint(
    opened: Callable[..., LoadedModel], expected: LoadedModel
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 150, 3), np.uint8)
    image = read_image(pixels, "image", LIMITS)
    processors = [model.image_processor for model in (opened(), expected)]
    ours, theirs = (processor.prepare(image) for processor in processors if processor is not None)
    assert ours.text == theirs.text
    assert [tile.digest for tile in ours.tiles] == [tile.digest for tile in theirs.tiles]


def test_bounds_on_pixels(opened: Callable[..., LoadedModel]) -> None:
    bounds = {"clip.vision.image_min_pixels": 8**2, "clip.vision.image_max_pixels": 100 * 8**2}
    processor = opened(keys=bounds).image_processor
    assert processor is not None
    image = read_image(np.zeros((400, 400, 3), np.uint8), "image", LIMITS)
    assert processor.prepare(image).n_tokens == 100


def test_old_files_with_three_matrices_and_other_names(
    opened: Callable[..., LoadedModel], expected: LoadedModel
) -> None:
    """Old converters split the matrix of q, k and v, and exchanged the matrices of the MLP."""
    changes: dict[str, Any] = {}
    for layer in range(3):
        block = f"v.blk.{layer}."
        for kind in ("weight", "bias"):
            changes[f"{block}attn_qkv.{kind}"] = None
            for part in "qkv":
                array = expected.tensors[f"tower.layers.{layer}.{part}.{kind}"].array
                changes[f"{block}attn_{part}.{kind}"] = torch.from_numpy(np.array(array))
    names = {
        f"v.blk.{layer}.ffn_{a}.{kind}": f"v.blk.{layer}.ffn_{b}.{kind}"
        for layer in range(3)
        for kind in ("weight", "bias")
        for a, b in (("up", "down"), ("down", "up"))
    }
    found = opened(tensors=changes, renamed=names)
    for name, tensor in tower_of(expected).items():
        assert np.array_equal(found.tensors[name].array, tensor.array), name


def test_a_model_finds_its_tower(saved: Path, tmp_path: Path, expected: LoadedModel) -> None:
    model = tmp_path / "Tiny-VL-F32.gguf"
    model.write_bytes((saved / "model.gguf").read_bytes())
    alone = open_model(model)
    assert alone.vision is alone.image_processor is None
    assert not alone.config.takes_images
    assert alone.config.ropes[0].axes == ()
    write_mmproj(saved / "hf", tmp_path / "mmproj-Tiny-VL-F16.gguf", Kind.F16)
    write_mmproj(saved / "hf", tmp_path / "mmproj-Tiny-VL-BF16.gguf", Kind.BF16)
    (tmp_path / "mmproj-Other-BF16.gguf").write_bytes(b"no model")
    for found in (open_model(model), open_model(tmp_path)):
        assert found.vision == expected.vision
        assert found.tensors["tower.layers.0.q.weight"].dtype == "bf16"
        assert found.fingerprint != alone.fingerprint
        assert found.weights_fingerprint != alone.weights_fingerprint
    assert open_model(model, vision=False).vision is None
    named = open_model(model, mmproj=str(tmp_path / "mmproj-Tiny-VL-F16.gguf"))
    assert named.tensors["tower.layers.0.q.weight"].dtype == "f16"


def test_a_tower_is_no_model(saved: Path, tmp_path: Path) -> None:
    tower = write_mmproj(saved / "hf", tmp_path / "mmproj.gguf")
    with pytest.raises(ModelFormatError, match=r"is the vision tower of a model; give the \.gguf"):
        open_model(tower)
    with pytest.raises(ModelFormatError, match=r"mmproj .*: is for a model in a GGUF file"):
        open_model(saved / "hf", mmproj=tower)
    with pytest.raises(ModelFormatError, match=r"general.architecture is .*; expected 'clip'"):
        open_model(saved / "model.gguf", mmproj=saved / "model.gguf")
    with pytest.raises(ModelFormatError, match=r"absent\.gguf: no GGUF file; expected the mmproj"):
        open_model(saved / "model.gguf", mmproj=tmp_path / "absent.gguf")
    (tmp_path / "bad.gguf").write_bytes(tower.read_bytes()[:999])
    with pytest.raises(ModelFormatError, match=r"bad\.gguf"):
        open_model(saved / "model.gguf", mmproj=tmp_path / "bad.gguf")


ZEROS = torch.zeros
BAD: list[tuple[dict[str, Any], str]] = [
    ({"keys": {"clip.has_vision_encoder": False}}, "clip.has_vision_encoder is False; expected tr"),
    ({"keys": {"clip.has_vision_encoder": None}}, "clip.has_vision_encoder is missing"),
    ({"keys": {"clip.projector_type": "mlp"}}, "clip.projector_type is 'mlp'; expected one of"),
    ({"keys": {"clip.projector_type": None}}, "clip.projector_type is missing"),
    ({"keys": {"clip.vision.projector_type": "x"}}, "clip.vision.projector_type is 'x'"),
    ({"keys": {"clip.vision.block_count": 0}}, "clip.vision.block_count is 0"),
    ({"keys": {"clip.vision.block_count": 2**31}}, "clip.vision.block_count is 2147483648"),
    ({"keys": {"clip.vision.embedding_length": None}}, "clip.vision.embedding_length is missing"),
    ({"keys": {"clip.vision.attention.head_count": 5}}, "clip.vision.attention.head_count is 5; "),
    ({"keys": {"clip.vision.attention.head_count": 8}}, "heads of a multiple of 4"),
    ({"keys": {"clip.vision.projection_dim": 31}}, "clip.vision.projection_dim is 31; expected 32"),
    ({"keys": {"clip.vision.patch_size": 0}}, "clip.vision.patch_size is 0"),
    ({"keys": {"clip.vision.patch_size": 8}}, "tensor 'v.patch_embd.weight': found shape"),
    ({"keys": {"clip.vision.spatial_merge_size": 40}}, "clip.vision.spatial_merge_size is 40"),
    ({"keys": {"clip.vision.image_mean": [0.5, 0.5]}}, "clip.vision.image_mean is .*; expected th"),
    ({"keys": {"clip.vision.image_std": [0.5, 0.0, 0.5]}}, "clip.vision.image_std is"),
    ({"keys": {"clip.vision.image_std": [float("nan")] * 3}}, "clip.vision.image_std is"),
    ({"keys": {"clip.vision.image_std": "half"}}, "clip.vision.image_std is 'half'"),
    ({"keys": {"clip.vision.image_min_pixels": 0}}, "clip.vision.image_min_pixels is 0"),
    (
        {"keys": {"clip.vision.image_min_pixels": 99, "clip.vision.image_max_pixels": 98}},
        "clip.vision.image_max_pixels is 98",
    ),
    (
        {"keys": {"clip.vision.is_deepstack_layers": [True] * 3}},
        "clip.vision.is_deepstack_layers is .*; expected [02] times true, as of qwen3",
    ),
    ({"keys": {"clip.vision.is_deepstack_layers": [True]}}, "a truth value for each of 3 layers"),
    ({"tensors": {"v.post_ln.bias": None}}, "tensor v.post_ln.bias is missing"),
    ({"tensors": {"v.blk.1.attn_qkv.weight": None}}, "tensor v.blk.1.attn_q.weight is missing"),
    ({"tensors": {"v.blk.1.ln1.weight": ZEROS(47)}}, r"'v.blk.1.ln1.weight': found shape \[47\]"),
    ({"tensors": {"mm.2.weight": ZEROS(32, 48)}}, r"'mm.2.weight': found shape \[32, 48\]"),
    ({"tensors": {"v.position_embd.weight": None}}, "tensor v.position_embd.weight is missing"),
    ({"tensors": {"v.position_embd.weight": ZEROS(37, 48)}}, "a square number"),
    ({"tensors": {"v.patch_embd.weight.1": None}}, "tensor 'v.patch_embd.weight': found shape"),
    ({"tensors": {"v.patch_embd.weight": None}}, "weight.1': found f32 .*; expected no such tens"),
    (
        {"tensors": {"v.patch_embd.weight.1": ZEROS(48, 3, 4, 5)}},
        r"weight.1': found f32 \[48, 3, 4, 5\]; expected f32 \[48, 3, 4, 4\]",
    ),
    ({"tensors": {"v.class_embd": ZEROS(48)}}, "'v.class_embd' has no place in a tower"),
    ({"tensors": {"mm.3.weight": ZEROS(4, 4)}}, "'mm.3.weight' has no place in a tower"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_malformed_files(
    changes: dict[str, Any], said: str, opened: Callable[..., LoadedModel]
) -> None:
    with pytest.raises(ModelFormatError, match=said) as raised:
        opened(**changes)
    assert "tower.gguf: " in str(raised.value)


def test_tensors_for_sounds_are_left_out(opened: Callable[..., LoadedModel]) -> None:
    model = opened(tensors={"a.blk.0.ln1.weight": ZEROS(8), "mm.a.mlp.0.weight": ZEROS(8)})
    assert model.vision is not None


def test_a_tower_of_another_architecture(saved: Path, tmp_path: Path) -> None:
    tower = write_mmproj(saved / "hf", tmp_path / "tower.gguf")
    plain = write_gguf(make_checkpoint(tmp_path / "plain", "qwen3"), tmp_path / "model.gguf")
    with pytest.raises(
        ModelFormatError, match=r"clip.projector_type is .*; expected one for qwen3"
    ):
        open_model(plain, mmproj=tower)
    (tmp_path / "mmproj.gguf").write_bytes(b"a model without images reads no mmproj file")
    assert open_model(plain).vision is None
