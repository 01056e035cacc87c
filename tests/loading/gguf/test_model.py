"""The oracle is the same checkpoint as safetensors; for blocks, the `gguf` package."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import pair, raw_gguf, tensor, text, write_gguf
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.loading import Tensor, open_model
from pybatcher.loading.checkpoints.blocks import BLOCKS, block_name
from pybatcher.loading.gguf.model import open_gguf
from pybatcher.loading.parts.gguf_names import gguf_name
from pybatcher.params.embedding_defaults import EmbeddingDefaults
from pybatcher.testing.checkpoints import make_checkpoint

ARCHITECTURES = ("llama", "qwen2", "qwen3")
PROMPT = list(range(5, 60))
NAMES_IN_GGUF = {"olmo3": "olmo2", "internlm3": "llama", "ministral3": "mistral3"}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ROOT_OF_8 = {"hidden_size": 64, "num_attention_heads": 4}
_SIX_TO_ONE = {
    "num_hidden_layers": 7,
    "sliding_window_pattern": 6,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
# The roots of 64 and 16 are the same in every dtype.
_GEMMA_4 = {**_ROOT_OF_8, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 16}
# Every architecture with heads of another size, groups, a tied head and not, all biases there are.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 6}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": True}),
    ("phi3", {}),
    ("phi3", {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5}}),
    ("internlm3", {"attention_bias": True, "mlp_bias": True}),
    ("ministral3", {}),
    ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    # A file does not say by what scores are scaled; the root of 64 is the same in every dtype.
    ("gemma2", {**_ROOT_OF_8, "query_pre_attn_scalar": 16}),
    ("gemma3", {**_ROOT_OF_8, "query_pre_attn_scalar": 16, **_SIX_TO_ONE}),
    ("gemma4", _GEMMA_4),
    ("gemma4", {**_GEMMA_4, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}),
    ("gemma4", {**_GEMMA_4, "vocab_size_per_layer_input": 403}),
    ("gemma4", {**_GEMMA_4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": False}),
    ("granite", {"residual_multiplier": 0.25, "attention_multiplier": 0.5, "logits_scaling": 4.0}),
    ("olmo2", {"attention_bias": False}),
    ("olmo3", {}),
]
WIDE = {  # enough for every kind of block
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
PLAIN = {"float32": Kind.F32, "float16": Kind.F16, "bfloat16": Kind.BF16}


def logits(path: Path, dtype: str = "f32") -> NDArray[np.float32]:
    """Return the logits of the last token of PROMPT, then of every token of a few, one by one."""
    engine = Engine.load(path, dtype=dtype, n_ctx=128, n_parallel=2)
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, PROMPT, logits=True)]
    rows += [engine.prefill_chunk(seq_id, [token], logits=True) for token in (9, 300, 12)]
    engine.close()
    return np.array(rows)


def values(loaded: Tensor) -> NDArray[np.float32]:
    """Return the tensor's elements as numbers, whatever their type."""
    if loaded.dtype == "bf16":
        return (loaded.array.astype(np.uint32) << 16).view(np.float32)
    if loaded.dtype in BLOCKS:
        made: NDArray[np.float32] = gguf.quants.dequantize(
            loaded.array, Kind[block_name(loaded.dtype)]
        )
        return made
    return loaded.array.astype(np.float32)


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_plain_weights_and_logits_bit_for_bit(
    architecture: str, changes: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path / "hf", architecture, dtype=dtype, **changes)
    path = write_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory), open_model(path)
    eps = np.float32(known.config.norm_eps)
    assert np.float32(loaded.config.norm_eps) == eps
    written = NAMES_IN_GGUF.get(architecture, architecture)
    assert replace(loaded.config, norm_eps=eps) == replace(
        known.config, norm_eps=eps, architecture=written
    )
    assert loaded.dtype == known.dtype
    assert loaded.tensors.keys() == known.tensors.keys()
    for name, expected in known.tensors.items():
        made = loaded.tensors[name]
        assert made.dtype == ("f32" if expected.array.ndim == 1 else expected.dtype)
        np.testing.assert_array_equal(values(made), values(expected), err_msg=name)
    for engine_dtype in ("f32", "bf16"):
        np.testing.assert_array_equal(logits(path, engine_dtype), logits(directory, engine_dtype))


@pytest.mark.parametrize("key", ["yarn_attn_factor", "attn_factor"])
@pytest.mark.parametrize("factor", [1.2079441541679836, 1.0, 1.75])
def test_attention_factor_of_yarn(factor: float, key: str, tmp_path: Path) -> None:
    full = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "attention_factor": factor}
    rope = {
        "full_attention": {**full, "original_max_position_embeddings": 128},
        "sliding_attention": PLAIN_ROPE,
    }
    directory = make_checkpoint(tmp_path / "hf", "olmo3", rope_parameters=rope)
    keys = {f"olmo2.rope.scaling.{key}": factor}
    path = write_gguf(directory, tmp_path / "model.gguf", keys=keys)
    np.testing.assert_array_equal(logits(path), logits(directory))


def test_layers_of_several_shapes(tmp_path: Path) -> None:
    """A narrower layer is one whose other KV heads are copies, and whose other rows are zeros."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    wide = make_checkpoint(tmp_path / "hf", "qwen2", intermediate_size=88, **sizes)
    tensors = load_file(wide / "model.safetensors")
    narrow = dict(tensors)
    for name, weight in tensors.items():
        if ".1." in name and ("k_proj" in name or "v_proj" in name):
            weight[16:] = weight[:16]
            narrow[name] = weight[:16].contiguous()
        elif ".1.mlp.down" in name:
            weight[:, 40:] = 0
            narrow[name] = weight[:, :40].contiguous()
        elif ".1.mlp." in name:
            weight[40:] = 0
            narrow[name] = weight[:40].contiguous()
    save_file(tensors, wide / "model.safetensors")
    expected = logits(write_gguf(wide, tmp_path / "wide.gguf"))
    save_file(narrow, wide / "model.safetensors")
    n_layers = len({name.split(".")[2] for name in tensors if ".layers." in name})
    keys: dict[str, Any] = {
        "qwen2.attention.head_count": [4] * n_layers,
        "qwen2.attention.head_count_kv": [2, 1, *[2] * (n_layers - 2)],
        "qwen2.feed_forward_length": [88, 40, *[88] * (n_layers - 2)],
    }
    path = write_gguf(wide, tmp_path / "narrow.gguf", keys=keys)
    np.testing.assert_allclose(logits(path), expected, rtol=0, atol=1e-5)


def test_scaling_of_llama_3(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    directory = make_checkpoint(tmp_path / "hf", "llama", rope_parameters=rope)
    path = write_gguf(directory, tmp_path / "model.gguf")
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-4)
    plain = make_checkpoint(tmp_path / "plain", "llama")
    assert np.abs(logits(plain) - logits(path)).max() > 1e-2


@pytest.mark.parametrize("dtype", ["linear", "yarn"])
def test_scaled_rope_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": dtype, "rope_theta": 1e4, "factor": 4.0}
    if dtype == "yarn":
        rope["original_max_position_embeddings"] = 128
    directory = make_checkpoint(tmp_path / "hf", "qwen2", rope_parameters=rope)
    path = write_gguf(directory, tmp_path / "model.gguf")
    np.testing.assert_array_equal(logits(path), logits(directory))


@pytest.mark.parametrize("original", [64, 256])  # the engine has 128 positions
def test_longrope_bit_for_bit(original: int, tmp_path: Path) -> None:
    factors = np.random.default_rng(1).uniform(1, 9, (2, 3)).astype(np.float32).tolist()
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    directory = make_checkpoint(
        tmp_path / "hf",
        "phi3",
        rope_parameters={**rope, "short_factor": factors[0], "long_factor": factors[1]},
        original_max_position_embeddings=original,
    )
    path = write_gguf(directory, tmp_path / "model.gguf")
    np.testing.assert_array_equal(logits(path), logits(directory))
    config = open_gguf(path).config
    assert config.ropes == open_model(directory).config.ropes
    assert config.ropes[0].attention_factor > 1
    assert config.ropes[0].original_positions == original


def test_longrope_for_short_contexts_only(tmp_path: Path) -> None:
    factors = {"short_factor": [1.5] * 4, "long_factor": [3.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    directory = make_checkpoint(
        tmp_path / "hf", "phi3", rope_parameters=rope, original_max_position_embeddings=64
    )
    names = "rope_factors_long.weight", "rope_factors_none.weight"
    path = renamed(directory, tmp_path / "model.gguf", *names)
    with pytest.raises(ModelFormatError, match=r"rope_factors_long\.weight is missing"):
        open_gguf(path)


def test_pooling(small: Path, tmp_path: Path) -> None:
    def embedding(kind: int | None) -> EmbeddingDefaults:
        path = write_gguf(small, tmp_path / "model.gguf", keys={"llama.pooling_type": kind})
        return open_gguf(path).embedding

    assert embedding(None) == embedding(0) == EmbeddingDefaults("last", False)
    assert embedding(1) == EmbeddingDefaults("mean", True)
    assert embedding(3) == EmbeddingDefaults("last", True)
    with pytest.raises(
        ModelFormatError, match=r"llama\.pooling_type is 4; expected 0 or 1 or 2 or 3"
    ):
        embedding(4)


# -- blocks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("wide")
    return {name: make_checkpoint(root / name, name, **WIDE) for name in ARCHITECTURES}


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q5_1, Kind.Q4_K, Kind.Q6_K])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_blocks(architecture: str, kind: Kind, wide: dict[str, Path], tmp_path: Path) -> None:
    """Blocks are those of the file, with rows of q and k permuted, and dequantise as in gguf."""
    path = write_gguf(wide[architecture], tmp_path / "model.gguf", kind)
    written = {
        entry.name: gguf.quants.dequantize(entry.data, entry.tensor_type)
        for entry in gguf.GGUFReader(path).tensors
    }
    loaded = open_gguf(path)
    engine_names = {Kind.Q8_0: "int8", Kind.Q4_0: "int4", Kind.Q4_K: "q4_k", Kind.Q6_K: "q6_k"}
    dtype = engine_names.get(kind, kind.name.lower())
    for name, made in loaded.tensors.items():
        expected = written[gguf_name(name)]
        assert made.shape == expected.shape
        assert made.dtype == ("f32" if made.array.ndim == 1 else dtype)
        if architecture == "llama" and name.split(".")[-2:-1] in (["q"], ["k"]):
            pairs = expected.reshape(-1, loaded.config.head_dim // 2, 2, expected.shape[1])
            expected = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1)
            expected = expected.reshape(made.shape)
        np.testing.assert_array_equal(values(made), expected, err_msg=name)


def dequantised(directory: Path, target: Path, kind: Kind) -> Path:
    """Return the checkpoint with matrices quantised to `kind` and dequantised."""
    shutil.copytree(directory, target)
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            blocks = gguf.quants.quantize(weight.numpy(), kind)
            weights[name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    save_file(weights, target / "model.safetensors")
    return target


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q5_0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_blocks_are_those_of_their_values(
    architecture: str, kind: Kind, wide: dict[str, Path], tmp_path: Path
) -> None:
    """Rows are quantised one by one, so that permuting before or after is the same."""
    path = write_gguf(wide[architecture], tmp_path / "model.gguf", kind)
    plain = dequantised(wide[architecture], tmp_path / "plain", kind)
    for dtype in ("f32", "bf16"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bf16 cannot hold them
            np.testing.assert_array_equal(logits(path, dtype), logits(plain, dtype))


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.Q8_0, "int8"), (Kind.Q4_0, "int4")])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_blocks_of_the_engine_are_taken_as_they_are(
    architecture: str, kind: Kind, dtype: str, wide: dict[str, Path], tmp_path: Path
) -> None:
    """ "auto" chooses the file's type; quantising the dequantised values gives the same blocks.

    (The greatest number of a group is 127 or -8 times its scale, as quantisation left it.)
    """
    path = write_gguf(wide[architecture], tmp_path / "model.gguf", kind)
    plain = dequantised(wide[architecture], tmp_path / "plain", kind)
    engine = Engine.load(path, n_ctx=64, n_parallel=1)
    assert engine.description()["dtype"] == dtype
    engine.close()
    np.testing.assert_array_equal(logits(path, "auto"), logits(plain, dtype))


def q4_k_m(name: str) -> Kind:
    """A mixture of types as llama.cpp makes it."""
    if name == "token_embd.weight" or "attn_v" in name or "ffn_down" in name:
        return Kind.Q6_K
    return Kind.Q4_K


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Kind.F32, "f32"),
        (Kind.F16, "f16"),
        (Kind.BF16, "bf16"),
        (Kind.Q8_0, "int8"),
        (Kind.Q6_K, "q6_k"),
        (Kind.Q5_K, "q5_k"),
        *((Kind.IQ4_XS, "iq4_xs"), (Kind.Q4_1, "q4_1"), (Kind.Q3_K, "q3_k")),
        (Kind.Q4_0, "int4"),
        (Kind.Q4_K, "q4_k"),
        (q4_k_m, "q4_k"),
        (Kind.Q2_K, "q2_k"),
        (Kind.IQ3_S, "int4"),
        (lambda name: Kind.Q6_K if name == "output.weight" else Kind.Q4_0, "int4"),
        (lambda name: Kind.F16 if name == "token_embd.weight" else Kind.Q8_0, "int8"),
        (lambda name: Kind.Q8_0 if "ffn" in name else Kind.F16, "int8"),  # few, but large
    ],
)
def test_the_dtype_that_prevails(
    kind: Kind | Callable[[str], Kind], dtype: str, wide: dict[str, Path], tmp_path: Path
) -> None:
    assert open_gguf(write_gguf(wide["llama"], tmp_path / "model.gguf", kind)).dtype == dtype


def test_a_mixture_loads_with_one_warning(wide: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(wide["llama"], tmp_path / "model.gguf", q4_k_m)
    with pytest.warns(UserWarning, match="model.gguf: .* to bf16") as caught:
        assert np.isfinite(logits(path, "bf16")).all()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(logits(path, "f32")).all()


def test_blocks_whose_scale_is_no_number(wide: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(wide["llama"], tmp_path / "model.gguf", Kind.Q8_0)
    (entry,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight"]
    damaged = bytearray(path.read_bytes())
    damaged[entry.data_offset : entry.data_offset + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(damaged)
    with pytest.raises(ModelFormatError, match=r"model\.gguf: .*layers\.1\.up\.weight"):
        logits(path)


# -- tensors that do not fit ------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "hf", "llama")


def renamed(directory: Path, path: Path, old: str, new: str) -> Path:
    """The checkpoint as GGUF with a tensor's name changed to another of its length."""
    write_gguf(directory, path)
    raw = path.read_bytes()
    assert len(old) == len(new)
    assert raw.count(text(old)) == 1
    path.write_bytes(raw.replace(text(old), text(new)))
    return path


def test_a_missing_tensor(small: Path, tmp_path: Path) -> None:
    path = renamed(small, tmp_path / "model.gguf", "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight")
    with pytest.raises(
        ModelFormatError, match=r"model\.gguf: tensor blk\.1\.ffn_up\.weight is missing"
    ):
        open_gguf(path)
    path = renamed(small, tmp_path / "model.gguf", "token_embd.weight", "token_embe.weight")
    with pytest.raises(ModelFormatError, match=r"tensor token_embd\.weight is missing"):
        open_gguf(path)


def test_a_tensor_that_has_no_place(small: Path, tmp_path: Path) -> None:
    """Ignored, an absent head would be read as tied, and experts would be lost."""
    path = renamed(small, tmp_path / "model.gguf", "output.weight", "outputs.weigh")
    with pytest.raises(ModelFormatError, match=r"tensor 'outputs\.weigh' has no place in the lla"):
        open_gguf(path)


def test_a_shape_that_the_metadata_do_not_call_for(small: Path, tmp_path: Path) -> None:
    path = write_gguf(small, tmp_path / "model.gguf", keys={"llama.feed_forward_length": 90})
    with pytest.raises(
        ModelFormatError, match=r"'blk.0.ffn_gate.weight': found shape \[88, 48\]; expected \[90"
    ):
        open_gguf(path)


def test_a_weight_of_whole_numbers(tmp_path: Path) -> None:
    keys = [pair("general.architecture", 8, text("llama"))]
    numbers = {
        "block_count": 1,
        "context_length": 8,
        "embedding_length": 4,
        "feed_forward_length": 4,
        "attention.head_count": 2,
    }
    keys += [pair(f"llama.{k}", 4, v.to_bytes(4, "little")) for k, v in numbers.items()]
    keys += [pair("llama.attention.layer_norm_rms_epsilon", 6, bytes(4))]
    raw = raw_gguf(keys, [tensor("token_embd.weight", [4, 8], 26)], bytes(128))
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(
        ModelFormatError, match=r"'token_embd\.weight': found dtype I32; expected one of f32, "
    ):
        open_gguf(path)


@pytest.fixture
def parts(small: Path, tmp_path: Path) -> list[Path]:
    """A model in parts of 9 tensors; `model.gguf` is the same in one file."""
    write_gguf(small, tmp_path / "model.gguf")
    folder = tmp_path / "parts"
    folder.mkdir()
    write_gguf(small, folder / "model.gguf", tensors_of_part=9)
    found = sorted(folder.iterdir())
    assert found[0].name == "model-00001-of-00004.gguf"
    return found


def test_a_model_in_parts(parts: list[Path], tmp_path: Path) -> None:
    one, several = open_model(tmp_path / "model.gguf"), open_model(parts[0])
    assert several.config == one.config
    assert (several.name, several.path) == ("model", parts[0])
    assert several.tokenizer.chat_template == one.tokenizer.chat_template
    assert several.tensors.keys() == one.tensors.keys()
    for name, expected in one.tensors.items():
        np.testing.assert_array_equal(several.tensors[name].array, expected.array, err_msg=name)
    np.testing.assert_array_equal(logits(parts[0]), logits(tmp_path / "model.gguf"))
    assert open_model(parts[0].parent).path == parts[0]
    (parts[0].parent / "mmproj-x.gguf").write_bytes(b"GGUF")
    assert open_model(parts[0].parent).path == parts[0]


def test_every_part_changes_the_fingerprint(parts: list[Path]) -> None:
    before = open_model(parts[0]).fingerprint
    data = parts[2].read_bytes()
    parts[2].write_bytes(data)
    assert open_model(parts[0]).fingerprint == before
    parts[2].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert open_model(parts[0]).fingerprint not in (before, "")


def _with_count(path: Path, count: int, new: int) -> None:
    key = b"split.count" + (2).to_bytes(4, "little")
    raw = path.read_bytes().replace(
        key + count.to_bytes(2, "little"), key + new.to_bytes(2, "little")
    )
    path.write_bytes(raw)


WRONG_PARTS: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "absent": (lambda p: p[2].unlink(), "00003-of-00004.gguf: no such file; it is part 3 of 4"),
    "no first": (lambda p: p[0].unlink(), "00001-of-00004.gguf: no such file; it is part 1 of 4"),
    "cut": (lambda p: p[1].write_bytes(p[1].read_bytes()[:-9]), "00002.*a file that is not cut"),
    "empty": (lambda p: p[3].write_bytes(b""), "00004-of-00004.gguf: "),
    "another file": (lambda p: p[3].write_bytes(b"version https"), "does not begin with 'GGUF'"),
    "twice": (
        lambda p: p[2].write_bytes(p[1].read_bytes()),
        "00003-of-00004.gguf: split.no is 1; expected 2, by the name of the file",
    ),
    "the first again": (
        lambda p: p[1].write_bytes(p[0].read_bytes()),
        "00002-of-00004.gguf: split.no is 0; expected 1",
    ),
    "another first": (
        lambda p: p[0].write_bytes(p[1].read_bytes()),
        "00001-of-00004.gguf: split.no is 1; expected 0, by the name of the file",
    ),
    "of another split": (
        lambda p: _with_count(p[3], 4, 5),
        "00004-of-00004.gguf: split.count is 5; expected 4, as in model-00001-of-00004.gguf",
    ),
    "fewer by the first": (
        lambda p: _with_count(p[0], 4, 3),
        "split.count is 3; expected 4 by the file's name; a first part is NAME-00001-of-00003",
    ),
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_wrong_parts(name: str, parts: list[Path]) -> None:
    change, message = WRONG_PARTS[name]
    change(parts)
    with pytest.raises(ModelFormatError, match=message):
        open_model(parts[0].parent)


def test_a_tensor_in_two_parts(parts: list[Path]) -> None:
    found = re.search(rb"blk\.(\d)\.attn_norm", parts[0].read_bytes())
    assert found is not None
    raw = parts[2].read_bytes()
    parts[2].write_bytes(re.sub(rb"blk\.\d\.attn_norm", found[0], raw))
    with pytest.raises(ModelFormatError, match=r"00003-of.*'blk\.0\.attn_norm.*' is in .*00001-of"):
        open_model(parts[0])


def test_a_part_that_is_not_the_first(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(
        ModelFormatError, match=r"is part 2 of 4; open the first, model-00001-of-00004\.gguf"
    ):
        open_model(parts[1])
    alone = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        ModelFormatError, match=r"split\.count is 4; expected 1 by the file's name; a first part"
    ):
        open_model(alone)


def test_a_folder_of_two_models(parts: list[Path], tmp_path: Path) -> None:
    shutil.copy(tmp_path / "model.gguf", parts[0].parent / "other.gguf")
    with pytest.raises(ModelFormatError, match=r"name one of its GGUF files: .*00001-of-00004"):
        open_model(parts[0].parent)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_divisors_that_are_none(bad: float, tmp_path: Path) -> None:
    array = np.array([1.0, bad], "<f4").tobytes()
    raw = raw_gguf([], [tensor("rope_freqs.weight", [2])], array)
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError, match=r"'rope_freqs\.weight': found f32 .*expected F32"):
        open_gguf(path)
