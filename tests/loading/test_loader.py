from __future__ import annotations

import mmap
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pybatcher.errors import ModelFormatError
from pybatcher.loading import LoadedModel, loader, open_model
from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

# In every architecture: odd counts of heads, groups of queries, tied and not, all biases.
VARIANTS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None}),
    ("mistral", {"num_attention_heads": 6, "num_key_value_heads": 3}),
    ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 6}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False, "n_inner": None}),
]


def expected_tensors(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return what transformers loaded, by canonical name. Independent code: it is the oracle."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if model.config.model_type == "gpt2":
        return _expected_gpt2(state, model.config)
    renamed = {
        "model.embed_tokens.weight": "token_embedding",
        "model.norm.weight": "final_norm.weight",
        "lm_head.weight": "head.weight",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "mlp_norm",
        "q_proj": "q",
        "k_proj": "k",
        "v_proj": "v",
        "o_proj": "o",
        "gate_proj": "gate",
        "up_proj": "up",
        "down_proj": "down",
        "q_norm": "q_norm",
        "k_norm": "k_norm",
    }
    result = {}
    for name, array in state.items():
        if name not in renamed:
            _, _, layer, *_, part, kind = name.split(".")
            result[f"layers.{layer}.{parts[part]}.{kind}"] = array
        else:
            result[renamed[name]] = array
    return result


def _expected_gpt2(state: dict[str, np.ndarray], config: object) -> dict[str, np.ndarray]:
    result = {
        "token_embedding": state["transformer.wte.weight"],
        "position_embedding": state["transformer.wpe.weight"],
        "final_norm.weight": state["transformer.ln_f.weight"],
        "final_norm.bias": state["transformer.ln_f.bias"],
        "head.weight": state["lm_head.weight"],
    }
    for layer in range(config.n_layer):
        there, here = f"transformer.h.{layer}", f"layers.{layer}"
        for kind in ("weight", "bias"):
            result[f"{here}.attn_norm.{kind}"] = state[f"{there}.ln_1.{kind}"]
            result[f"{here}.mlp_norm.{kind}"] = state[f"{there}.ln_2.{kind}"]
            fused = np.split(state[f"{there}.attn.c_attn.{kind}"], 3, axis=-1)
            for name, part in zip("qkv", fused, strict=True):
                result[f"{here}.{name}.{kind}"] = part.T
            result[f"{here}.o.{kind}"] = state[f"{there}.attn.c_proj.{kind}"].T
            result[f"{here}.up.{kind}"] = state[f"{there}.mlp.c_fc.{kind}"].T
            result[f"{here}.down.{kind}"] = state[f"{there}.mlp.c_proj.{kind}"].T
    return result


def check_against_transformers(loaded: LoadedModel, path: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = expected_tensors(module)
    if module.config.tie_word_embeddings:
        del expected["head.weight"]
    assert loaded.tensors.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, array, err_msg=name)


@pytest.mark.parametrize(("architecture", "overrides"), VARIANTS)
def test_the_weights_are_those_that_transformers_loads(
    architecture: str, overrides: dict[str, object], tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path / "model", architecture, seed=3, **overrides)
    loaded = open_model(path)
    assert loaded.config.architecture == architecture
    assert loaded.dtype == "f32"
    assert loaded.name == "model"
    assert loaded.path == path
    check_against_transformers(loaded, path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_half_precision_is_mapped_bit_for_bit(
    architecture: str, dtype: str, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path, architecture, dtype=dtype)
    loaded = open_model(path)
    assert loaded.dtype == {"bfloat16": "bf16", "float16": "f16"}[dtype]
    module = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    embedding = module.get_input_embeddings().weight.detach()
    bits = embedding.view(torch.uint16).numpy()
    np.testing.assert_array_equal(loaded.tensors["token_embedding"].array.view(np.uint16), bits)


def test_many_files_are_one_checkpoint(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "llama", seed=1, max_shard_size="100KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    check_against_transformers(open_model(path), path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_is_copied(architecture: str, originals: dict[str, Path]) -> None:
    """But for the few numbers of norms that multiply by 1 + weight, and rows in another order."""
    for name, tensor in open_model(originals[architecture]).tensors.items():
        if (
            architecture in ("gemma2", "gemma3", "qwen3_5", "qwen3_5_moe")
            and tensor.array.ndim == 1
        ):
            continue
        if architecture.startswith("qwen3_5") and name.split(".")[-2:-1] in (
            ["q"],
            ["k"],
            ["attn_gate"],
        ):
            continue
        owner = tensor.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert isinstance(owner.base, memoryview), name
        assert isinstance(owner.base.obj, mmap.mmap), name
        assert not tensor.array.flags.writeable, name


def test_gpt2_as_it_was_first_published_has_no_prefix(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(originals["gpt2"] / "model.safetensors")
    renamed = {name.removeprefix("transformer."): array for name, array in tensors.items()}
    renamed["h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)  # a mask, of no use
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((originals["gpt2"] / "config.json").read_bytes())
    loaded, expected = open_model(tmp_path), open_model(originals["gpt2"])
    assert loaded.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, tensor.array)


@pytest.mark.parametrize("path", ["no/such/model", "./meta-llama/Llama-3.2-1B", "\0", "x" * 5000])
def test_not_a_directory(path: str) -> None:
    with pytest.raises(ModelFormatError, match=r"no such directory.*config\.json"):
        open_model(path)


def test_no_such_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelFormatError, match="'a/b': no such directory or GGUF file, and as"):
        open_model("a/b")


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK")
    with pytest.raises(ModelFormatError, match="may be a pickle"):
        open_model(tmp_path / "model.bin")


def test_a_directory_of_gguf_files(tmp_path: Path) -> None:
    for name in ("b-Q8_0.gguf", "a-Q4_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match=r"no config\.json .*a-Q4_0\.gguf, say"):
        open_model(tmp_path)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"config\.json: no such file"):
        open_model(tmp_path)


def test_without_a_tokenizer_the_model_still_opens(llama: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (llama / name).unlink()
    loaded = open_model(llama)
    assert loaded.tokenizer.backend is None
    assert loaded.tokenizer.eos_token_ids == {1}
    assert loaded.tokenizer.bos_token_id == 0


def test_the_fingerprint_is_of_all_that_decides_tokens(llama: Path, tmp_path: Path) -> None:
    before = open_model(llama)
    (llama / "model.safetensors").chmod(0o640)
    (tmp_path / "link").hardlink_to(llama / "model.safetensors")
    (llama / "README.md").write_text("about")
    assert open_model(llama).fingerprint == before.fingerprint
    seen = {before.fingerprint}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        path = llama / name
        path.write_text(path.read_text() + " ")
        seen.add(open_model(llama).fingerprint)
    for name, text in (("generation_config.json", "{}"), ("chat_template.jinja", "hi")):
        (llama / name).write_text(text)
        seen.add(open_model(llama).fingerprint)
    assert len(seen) == 6
    assert open_model(llama).weights_fingerprint == before.weights_fingerprint


def test_files_that_are_always_replaced_are_an_error(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = loader.read_tokenizer
    n_reads = 0

    def replacing(*args: object) -> object:
        nonlocal n_reads
        n_reads += 1
        if n_reads <= n_replaced:
            new = llama / "new"
            new.write_text((llama / "config.json").read_text() + " ")
            new.rename(llama / "config.json")
        return read(*args)

    monkeypatch.setattr(loader, "read_tokenizer", replacing)
    n_replaced = 3
    open_model(llama)
    assert n_reads == 4
    n_replaced = 10**6
    with pytest.raises(ModelFormatError, match="were replaced each of the 20 times"):
        open_model(llama)


def test_a_transformer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Its files can be read after they were moved, as the error says."""
    inner = tmp_path / "0_Transformer"
    shutil.copytree(loader.SHIPPED_MODEL, inner)
    with pytest.raises(ModelFormatError, match="in the folder 0_Transformer, which is not read"):
        open_model(tmp_path)
    for file in inner.iterdir():
        file.rename(tmp_path / file.name)
    open_model(tmp_path)
