"""Write a checkpoint of random bf16 weights in the shape of a published model.

    python -m bench.make_checkpoint llama-3.2-1b

Makes a Hugging Face directory under bench/checkpoints/ with a byte-level tokenizer. Tensors are
made and written one after another, so that memory stays small; the same seed gives the same bytes.
An existing checkpoint is left alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.convert.shapes import ALL_SHAPES, config_of

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
SPREAD = 0.02  # the standard deviation of the weights, as in initialised models
CHUNK = 1 << 24  # numbers generated at a time
END_TOKEN = "<|end|>"


def tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return name and shape of every tensor; matrices (n_out, n_in), GPT-2's reversed."""
    if config["model_type"] == "gpt2":
        yield from _gpt2_tensor_shapes(config)
        return
    if config["model_type"] in ("lfm2", "lfm2_moe"):
        yield from _lfm2_tensor_shapes(config)
        return
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        if "layer_types" in config and config["layer_types"][i] == "linear_attention":
            yield from _recurrent_shapes(config, f"{layer}linear_attn.")
        else:
            yield from _attention_shapes(config, f"{layer}self_attn.")
        yield layer + "post_attention_layernorm.weight", (hidden,)
        if config["model_type"] == "gemma3_text":
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                yield f"{layer}{name}.weight", (hidden,)
        has_experts = config["model_type"] == "qwen3_moe"
        yield from (_expert_shapes if has_experts else _mlp_shapes)(config, f"{layer}mlp.")
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _attention_shapes(config: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    kind, hidden, head_dim = config["model_type"], config["hidden_size"], config["head_dim"]
    q_size = config["num_attention_heads"] * head_dim
    kv_size = config["num_key_value_heads"] * head_dim
    rows_of_q = q_size * 2 if kind == "qwen3_5_text" else q_size  # with a gate
    for name, size in (("q", rows_of_q), ("k", kv_size), ("v", kv_size)):
        yield f"{prefix}{name}_proj.weight", (size, hidden)
        if kind == "qwen2":
            yield f"{prefix}{name}_proj.bias", (size,)
    if kind in ("gemma3_text", "qwen3_moe", "qwen3_5_text"):
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}{name}.weight", (head_dim,)
    yield f"{prefix}o_proj.weight", (hidden, q_size)


def _mlp_shapes(config: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    yield f"{prefix}gate_proj.weight", (intermediate, hidden)
    yield f"{prefix}up_proj.weight", (intermediate, hidden)
    yield f"{prefix}down_proj.weight", (hidden, intermediate)


def _recurrent_shapes(config: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, n_heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = n_heads * config["linear_value_head_dim"]
    yield f"{prefix}in_proj_qkv.weight", (2 * keys + values, hidden)
    yield f"{prefix}in_proj_z.weight", (values, hidden)
    yield f"{prefix}in_proj_b.weight", (n_heads, hidden)
    yield f"{prefix}in_proj_a.weight", (n_heads, hidden)
    yield f"{prefix}conv1d.weight", (2 * keys + values, 1, config["linear_conv_kernel_dim"])
    yield f"{prefix}A_log", (n_heads,)
    yield f"{prefix}dt_bias", (n_heads,)
    yield f"{prefix}norm.weight", (config["linear_value_head_dim"],)
    yield f"{prefix}out_proj.weight", (hidden, values)


def _expert_shapes(config: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, intermediate = config["hidden_size"], config["moe_intermediate_size"]
    yield f"{prefix}gate.weight", (config["num_experts"], hidden)
    for expert in range(config["num_experts"]):
        for part in ("gate_proj", "up_proj"):
            yield f"{prefix}experts.{expert}.{part}.weight", (intermediate, hidden)
        yield f"{prefix}experts.{expert}.down_proj.weight", (hidden, intermediate)


def _lfm2_tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    n_dense = config.get("num_dense_layers", config["num_hidden_layers"])
    for i, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}."
        yield f"{layer}operator_norm.weight", (hidden,)
        if kind == "conv":
            yield f"{layer}conv.in_proj.weight", (3 * hidden, hidden)
            yield f"{layer}conv.conv.weight", (hidden, 1, config["conv_L_cache"])
            yield f"{layer}conv.out_proj.weight", (hidden, hidden)
        else:
            head_dim, prefix = config["head_dim"], f"{layer}self_attn."
            q_size = config["num_attention_heads"] * head_dim
            kv_size = config["num_key_value_heads"] * head_dim
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
                yield f"{prefix}{name}_proj.weight", (size, hidden)
            for name in ("q_layernorm", "k_layernorm"):
                yield f"{prefix}{name}.weight", (head_dim,)
            yield f"{prefix}out_proj.weight", (hidden, q_size)
        yield f"{layer}ffn_norm.weight", (hidden,)
        if i < n_dense:
            yield from _w123_shapes(f"{layer}feed_forward.", config["intermediate_size"], hidden)
            continue
        yield f"{layer}feed_forward.gate.weight", (config["num_experts"], hidden)
        yield f"{layer}feed_forward.expert_bias", (config["num_experts"],)
        for expert in range(config["num_experts"]):
            prefix = f"{layer}feed_forward.experts.{expert}."
            yield from _w123_shapes(prefix, config["moe_intermediate_size"], hidden)
    yield "model.embedding_norm.weight", (hidden,)


def _w123_shapes(prefix: str, inner: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the shapes of an MLP whose gate, up and down are w1, w3 and w2."""
    for name, shape in (("w1", (inner, hidden)), ("w3", (inner, hidden)), ("w2", (hidden, inner))):
        yield f"{prefix}{name}.weight", shape


def _gpt2_tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], hidden)
    yield "transformer.wpe.weight", (config["n_positions"], hidden)
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            yield f"{layer}{norm}.weight", (hidden,)
            yield f"{layer}{norm}.bias", (hidden,)
        products = {
            "attn.c_attn": (hidden, 3 * hidden),
            "attn.c_proj": (hidden, hidden),
            "mlp.c_fc": (hidden, 4 * hidden),
            "mlp.c_proj": (4 * hidden, hidden),
        }
        for name, shape in products.items():
            yield f"{layer}{name}.weight", shape
            yield f"{layer}{name}.bias", shape[1:]
    yield "transformer.ln_f.weight", (hidden,)
    yield "transformer.ln_f.bias", (hidden,)


def is_norm_weight(name: str) -> bool:
    """True for a norm's scale, whose values are about 1; those of other tensors are about 0."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and (module.endswith("norm") or ".ln_" in module)


def random_bf16(rng: np.random.Generator, count: int, mean: float) -> np.ndarray:
    """Return `count` bf16 numbers around `mean`, as uint16 bits, rounded towards zero."""
    numbers = rng.standard_normal(count, dtype=np.float32) * SPREAD + mean
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, config: dict[str, Any], seed: int) -> None:
    """Stream the tensors of `config` into one safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensor_shapes(config):
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    rng = np.random.Generator(np.random.SFC64(seed))
    # These families add one to the scales of their norms, except in recurrent layers.
    adds_one = config["model_type"] in ("gemma3_text", "qwen3_5_text")
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, shape in tensor_shapes(config):
            left = int(np.prod(shape))
            is_about_one = is_norm_weight(name) and (not adds_one or "linear_attn" in name)
            mean = 1.0 if is_about_one else 0.0
            while left:
                count = min(left, CHUNK)
                file.write(random_bf16(rng, count, mean).tobytes())
                left -= count


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level tokenizer: ids 0 to 255 are bytes, 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_TOKEN])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": END_TOKEN, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def make_checkpoint(shape: str, seed: int = 0) -> Path:
    """Return the directory of the checkpoint of `shape`; make it if it does not exist."""
    directory = CHECKPOINTS / shape
    if not (directory / "config.json").exists():
        write_checkpoint(directory, config_of(shape), seed)
    return directory


def write_checkpoint(directory: Path, config: dict[str, Any], seed: int = 0) -> None:
    """Write the checkpoint of a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory)
    write_safetensors(directory / "model.safetensors", config, seed)
    # Is written last: the checkpoint is complete.
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(ALL_SHAPES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(make_checkpoint(arguments.shape, arguments.seed))


if __name__ == "__main__":
    main()
