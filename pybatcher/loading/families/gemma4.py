"""Gemma 4: two layer shapes, shared KV, per-layer embeddings, scaled layer outputs.

Full-attention layers have wider heads, and may have fewer KV heads, whose k and v may come from one
projection (`attention_k_eq_v`). The last layers may read the KV of the last layer before them of
the same type, full or sliding. In E2B and E4B each layer adds a part of a second embedding, the
per-layer embeddings. Norms multiply by their weights, and scores are not scaled. The 26B-A4B has
experts beside each MLP, with norms and a router of their own: the router has an RMSNorm whose
weight is divided by sqrt(hidden), and it multiplies the weights of a row's experts, which sum to 1,
by a scale of each expert. A model with images and sounds contains a text model, the only part that
is read. Absent fields of config.json have transformers' defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.blueprint import PER_LAYER_EMBEDDINGS, TEXT_PREFIXES, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.layer_types import read_sliding_layers
from ..checkpoints.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
)
from ..checkpoints.llama_config import LlamaSizes, llama_config, read_sizes
from ..checkpoints.model_config import LayerShape, ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.rope import Rope, read_proportional_rope, read_rope
from ..checkpoints.tensors import TensorRule
from ..parts import gguf_experts, llama_like
from ..parts.experts import read_n_experts, stacked_parts
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_keys import ArchitectureKeys
from ..parts.gguf_llama import gguf_blueprint, renamed
from ..parts.gguf_names import gguf_name

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
}
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
}
_MOE_NORMS = {
    "experts_norm": "pre_feedforward_layernorm_2",
    "mlp_out_norm": "post_feedforward_layernorm_1",
    "experts_out_norm": "post_feedforward_layernorm_2",
}
_GGUF_NAMES = {
    "experts_norm": "pre_ffw_norm_2",
    "mlp_out_norm": "post_ffw_norm_1",
    "experts_out_norm": "post_ffw_norm_2",
}
"""GGUF's names of the norms before and after MLP and experts."""

_NO_TURN = 1e29
_GGUF_EXPERTS = gguf_experts.GgufExperts(beside_mlp=True)


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a gemma4_text config.json. Raises ModelFormatError."""
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    fields.refuse_unless("use_bidirectional_attention", "vision")
    sizes = read_sizes(fields, llama_like.NAMES)
    # The last layer always has full attention, as in transformers.
    sliding = (*read_sliding_layers(fields, sizes.n_layers, 6)[:-1], False)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS)
    vocab_size = fields.integer("vocab_size", 1, MAX_VOCABULARY)
    per_layer_embedding_size = fields.integer("hidden_size_per_layer_input", 0, MAX_WIDTH, 0)
    n_per_layer_rows = vocab_size
    if per_layer_embedding_size > 0:
        name = "vocab_size_per_layer_input"
        n_per_layer_rows = fields.integer(name, vocab_size, MAX_VOCABULARY, vocab_size)
        if per_layer_embedding_size * sizes.n_layers > MAX_WIDTH:
            raise fields.error("hidden_size_per_layer_input", f"up to {MAX_WIDTH} in all layers")
    config = llama_config(
        sizes,
        architecture="gemma4",
        vocab_size=vocab_size,
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=None,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )
    shapes = _read_shapes(fields, sizes, sliding)
    config = _with_parts(
        config,
        shapes=shapes,
        ropes=_read_ropes(fields, sizes.max_position_embeddings, shapes, sliding),
        sliding=sliding,
        per_layer_embedding_size=per_layer_embedding_size,
        logit_softcap=fields.number("final_logit_softcapping", 1e-3, 1e6, 0.0),
        moe=_read_moe(fields, sizes.n_layers),
    )
    values_are_keys = fields.boolean("attention_k_eq_v", False)
    found = _rules(
        config,
        bias=fields.boolean("attention_bias", False),
        keys_as_values=tuple(values_are_keys and not slides for slides in sliding),
        n_per_layer_rows=n_per_layer_rows,
    )
    tied = fields.boolean("tie_word_embeddings", True)
    every = (*found, *_expert_rules(config))
    return Blueprint(config, every, tied, rounds_embedding_scale=True)


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of the text part of a gemma4 config.json. Raises ModelFormatError."""
    text = fields.child("text_config").with_defaults({"model_type": "gemma4_text"})
    text.refuse_unless("model_type", "gemma4_text")
    return replace(_read(text), text_prefixes=TEXT_PREFIXES)


def _with_parts(
    config: ModelConfig,
    *,
    shapes: tuple[LayerShape, ...],
    ropes: tuple[Rope, Rope],
    sliding: tuple[bool, ...],
    per_layer_embedding_size: int,
    logit_softcap: float,
    moe: MoeConfig | None,
) -> ModelConfig:
    """Return a Llama-like configuration with the parts of Gemma 4.

    ropes: the frequencies of full-attention layers and of sliding-window layers.
    """
    return replace(
        config,
        n_kv_heads=shapes[0].n_kv_heads,
        head_dim=shapes[0].head_dim,
        intermediate_size=shapes[0].intermediate_size,
        activation="gelu_tanh",
        post_norm=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=1.0,
        logit_softcap=logit_softcap,
        ropes=ropes,
        layer_ropes=tuple(map(int, sliding)),
        layer_shapes=shapes,
        value_norm=True,
        layer_scales=True,
        moe=moe,
        per_layer_embedding_size=per_layer_embedding_size,
        per_layer_embedding_scale=per_layer_embedding_size**0.5 or 1.0,
    )


def _rules(
    config: ModelConfig, *, bias: bool, keys_as_values: tuple[bool, ...], n_per_layer_rows: int
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor except those of experts, with transformers' names as sources.

    bias: True if the attention projections have biases. keys_as_values: for each layer, True if
    it computes v with the weight of k; the two are normalised apart. n_per_layer_rows: rows of the
    checkpoint's per-layer embedding.
    """
    of_keys = {
        f"layers.{layer}.v.{kind}"
        for layer, shares in enumerate(keys_as_values)
        if shares
        for kind in ("weight", "bias")
    }
    for rule in llama_like.rules(
        config,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        norms=llama_like.SANDWICH_NORMS,
        qk_norm=True,
    ):
        if rule.name in of_keys:
            rule = replace(rule, source=rule.source.replace("v_proj", "k_proj"))
        yield rule
    for layer in range(config.n_layers):
        yield TensorRule(
            name=f"layers.{layer}.output_scale.weight",
            source=f"model.layers.{layer}.layer_scalar",
            shape=(1,),
        )
    yield from _moe_norm_rules(config)
    yield from _per_layer_embedding_rules(config, n_per_layer_rows)


def _per_layer_embedding_rules(config: ModelConfig, n_rows: int) -> Iterator[TensorRule]:
    """Yield the rules of the per-layer embeddings, whose table has n_rows in the checkpoint.

    A token id indexes the table directly, as in transformers, so that no id reaches the rows
    after the first vocab_size. These rows are not loaded.
    """
    hidden, size = config.hidden_size, config.per_layer_embedding_size
    if size == 0:
        return
    width = config.n_layers * size
    yield TensorRule(
        name=PER_LAYER_EMBEDDINGS,
        source="model.embed_tokens_per_layer.weight",
        shape=(n_rows, width),
        rows=None if n_rows == config.vocab_size else (0, config.vocab_size),
    )
    for name, source, shape in (
        ("per_layer_embeddings.proj.weight", "per_layer_model_projection.weight", (width, hidden)),
        ("per_layer_embeddings.norm.weight", "per_layer_projection_norm.weight", (size,)),
    ):
        yield TensorRule(name=name, source=f"model.{source}", shape=shape)
    for layer in range(config.n_layers):
        for name, source, shape in (
            ("input_gate", "per_layer_input_gate", (size, hidden)),
            ("input_proj", "per_layer_projection", (hidden, size)),
            ("input_post_norm", "post_per_layer_input_norm", (hidden,)),
        ):
            yield TensorRule(
                name=f"layers.{layer}.{name}.weight",
                source=f"model.layers.{layer}.{source}.weight",
                shape=shape,
            )


def _shared_layers(sliding: tuple[bool, ...], n_shared: int) -> tuple[int, ...] | None:
    """Return, for each layer, the layer whose KV it reads; -1: it has its own KV.

    The last n_shared layers read the KV of the last layer before them that has the same type.
    Returns None if there is no such layer for one of them.
    """
    own = sliding[: len(sliding) - n_shared]
    last = {slides: layer for layer, slides in enumerate(own)}
    if any(slides not in last for slides in sliding):
        return None
    return tuple(-1 if layer < len(own) else last[s] for layer, s in enumerate(sliding))


def _read_shapes(
    fields: Fields, sizes: LlamaSizes, sliding: tuple[bool, ...]
) -> tuple[LayerShape, ...]:
    n_shared = fields.integer("num_kv_shared_layers", 0, sizes.n_layers - 1, 0)
    kv_layers = _shared_layers(sliding, n_shared)
    if kv_layers is None:
        raise fields.error("num_kv_shared_layers", "layers of either type that are not shared")
    doubled = fields.boolean("use_double_wide_mlp", False)
    of_layers = _read_overrides(fields, sliding)
    shapes: list[LayerShape] = []
    for layer, kv_layer in enumerate(kv_layers):
        own = of_layers.get(layer, Fields({}, fields.source))
        head_dim = own.integer("head_dim", 2, MAX_HEAD_DIM, sizes.head_dim)
        n_kv_heads = own.integer("num_key_value_heads", 1, MAX_HEADS, sizes.n_kv_heads)
        if head_dim % 2:
            raise own.error("head_dim", f"an even number up to {MAX_HEAD_DIM}")
        if sizes.n_heads % n_kv_heads:
            raise own.error("num_key_value_heads", f"a divisor of {sizes.n_heads} heads")
        shape = LayerShape(
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            intermediate_size=sizes.intermediate_size * (2 if doubled and kv_layer >= 0 else 1),
            kv_layer=kv_layer,
        )
        if kv_layer >= 0 and replace(shape, kv_layer=-1) != replace(
            shapes[kv_layer], intermediate_size=shape.intermediate_size
        ):
            raise own.error("head_dim", f"the heads of layer {kv_layer}, whose keys it reads")
        shapes.append(shape)
    return tuple(shapes)


def _read_overrides(fields: Fields, sliding: tuple[bool, ...]) -> dict[int, Fields]:
    """Return the fields in which single layers differ, by layer.

    transformers 5 writes `per_layer_config`; published files have fields for all full-attention
    layers.
    """
    if "per_layer_config" not in fields:
        of_full = {"head_dim": fields.integer("global_head_dim", 2, MAX_HEAD_DIM, None)}
        if fields.boolean("attention_k_eq_v", False):
            n_kv_heads = fields.integer("num_global_key_value_heads", 1, MAX_HEADS, None)
            of_full["num_key_value_heads"] = n_kv_heads
        source = Fields(of_full, f"{fields.source}: full_attention")
        return {layer: source for layer, slides in enumerate(sliding) if not slides}
    given = fields.child("per_layer_config")
    found = {}
    for name in fields.get("per_layer_config"):
        if not str(name).isdecimal() or int(name) >= len(sliding):
            raise fields.error("per_layer_config", f"an object by layer, 0 to {len(sliding) - 1}")
        own = given.child(name)
        for other in own.names():
            if other not in ("head_dim", "num_key_value_heads"):
                own.refuse_unless(other)
        found[int(name)] = own
    return found


def _read_ropes(
    fields: Fields,
    max_position_embeddings: int,
    shapes: tuple[LayerShape, ...],
    sliding: tuple[bool, ...],
) -> tuple[Rope, Rope]:
    """Return the rotary frequencies of full-attention layers and of sliding-window layers."""
    by_type = fields.child("rope_parameters").with_defaults(_ROPES)
    for flat in ("rope_theta", "rope_type"):
        by_type.refuse_unless(flat)
    ropes = []
    for kind, slides in (("full_attention", False), ("sliding_attention", True)):
        scaling = by_type.child(kind)
        head_dims = {
            shape.head_dim for shape, s in zip(shapes, sliding, strict=True) if s is slides
        }
        if len(head_dims) > 1:
            raise fields.error("per_layer_config", f"one head_dim in all {kind} layers")
        head_dim = next(iter(head_dims), 2)
        if scaling.get("rope_type") == "proportional":
            ropes.append(read_proportional_rope(scaling, head_dim))
            continue
        source = Fields({"rope_parameters": by_type.get(kind)}, f"{fields.source}: {kind}")
        ropes.append(read_rope(source, head_dim, max_position_embeddings))
    return ropes[0], ropes[1]


def _read_moe(fields: Fields, n_layers: int) -> MoeConfig | None:
    """Return the experts of a gemma4_text config.json; None: the model has none."""
    if not fields.boolean("enable_moe_block", False):
        return None
    n_experts = read_n_experts(fields, "num_experts", n_layers)
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("top_k_experts", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=True,
        in_layer=(True,) * n_layers,
        beside_mlp=True,
    )


def _router_factor(config: ModelConfig) -> float:
    """Return the factor of the router norm's weight."""
    return float(config.hidden_size**-0.5)


def _moe_norm_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of the norms before and after MLP and experts, without the router's norm."""
    if config.moe is None:
        return
    for layer in range(config.n_layers):
        for name, source in _MOE_NORMS.items():
            yield TensorRule(
                name=f"layers.{layer}.{name}.weight",
                source=f"model.layers.{layer}.{source}.weight",
                shape=(config.hidden_size,),
            )


def _expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts."""
    moe = config.moe
    if moe is None:
        return
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        yield TensorRule(
            name=f"{here}router_norm.weight",
            source=f"{there}router.scale",
            shape=(config.hidden_size,),
            times=_router_factor(config),
        )
        yield TensorRule(
            name=f"{here}router.weight",
            source=f"{there}router.proj.weight",
            shape=(moe.n_experts, config.hidden_size),
        )
        yield TensorRule(
            name=f"{here}expert_scales.weight",
            source=f"{there}router.per_expert_scale",
            shape=(moe.n_experts,),
        )
        for part in stacked_parts(moe, config.hidden_size, f"{there}experts."):
            yield from (part.rule(layer, expert) for expert in range(moe.n_experts))


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = _read_gguf_config(contents)
    own = _gguf_rules(config, _gguf_n_per_layer_rows(contents))
    rules = (*renamed(own, _GGUF_NAMES), *_gguf_expert_rules(config))
    return gguf_blueprint(contents, config, rules, _gguf_unused(config))


def _gguf_n_per_layer_rows(contents: GgufContents) -> int:
    """Return the rows of the per-layer embedding, for which a file has no key."""
    table = contents.tensors.get(gguf_name(PER_LAYER_EMBEDDINGS))
    n_rows = 0 if table is None else table.shape[0]
    return max(n_rows, contents.vocab_size)


def _read_gguf_config(contents: GgufContents) -> ModelConfig:
    """Return the configuration of a file.

    Full-attention layers have the usual keys of sizes; the keys of sliding-window layers end in
    `_swa`. The key of a size that varies between layers has a list.
    """
    keys = contents.keys
    keys.refuse_unless("attention.causal", True)
    keys.refuse_unless("attention.scale", 1.0)
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    sliding = tuple(keys.flags("attention.sliding_window_pattern", n_layers))
    window = keys.integer("attention.sliding_window", 1, MAX_POSITIONS)
    shapes = _read_gguf_shapes(keys, sliding)
    positions = keys.integer("context_length", 1, MAX_POSITIONS)
    size = keys.integer("embedding_length_per_layer_input", 0, MAX_WIDTH // n_layers, 0)
    sizes = LlamaSizes(
        hidden_size=keys.integer("embedding_length", 1, MAX_WIDTH),
        n_layers=n_layers,
        n_heads=_gguf_n_heads(keys, n_layers),
        n_kv_heads=shapes[0].n_kv_heads,
        head_dim=shapes[0].head_dim,
        intermediate_size=shapes[0].intermediate_size,
        max_position_embeddings=positions,
    )
    config = llama_config(
        sizes,
        architecture="gemma4",
        vocab_size=contents.vocab_size,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=None,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )
    return _with_parts(
        config,
        shapes=shapes,
        ropes=_read_gguf_ropes(keys, positions, contents.rope_divisors),
        sliding=sliding,
        per_layer_embedding_size=size,
        logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        moe=gguf_experts.read_moe(keys, _GGUF_EXPERTS, sizes),
    )


def _gguf_rules(config: ModelConfig, n_per_layer_rows: int) -> Iterator[TensorRule]:
    """Yield the rules of a file. A layer without a weight of v computes v with that of k."""
    for rule in _rules(
        config,
        bias=False,
        keys_as_values=(False,) * config.n_layers,
        n_per_layer_rows=n_per_layer_rows,
    ):
        part = rule.name.split(".")
        if part[2:] == ["v", "weight"]:
            keys = f"blk.{part[1]}.attn_k.weight"
            rule = replace(rule, otherwise=replace(rule, source=keys))
        yield rule


def _gguf_expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts, with GGUF's names as sources.

    The converter writes gate above up in one tensor; other programs write two tensors.
    """
    if config.moe is None:
        return
    n, inner = config.moe.n_experts, config.moe.intermediate_size
    for rule in gguf_experts.expert_rules(config):
        _, number, *_, part, _ = rule.name.split(".")
        if part not in ("gate", "up"):
            yield rule
            continue
        first = 0 if part == "gate" else inner
        yield replace(
            rule,
            source=f"blk.{number}.ffn_gate_up_exps.weight",
            shape=(n, 2 * inner, config.hidden_size),
            rows=(first, first + inner),
            otherwise=rule,
        )
    for layer in range(config.n_layers):
        yield TensorRule(
            name=f"layers.{layer}.router_norm.weight",
            source=f"blk.{layer}.ffn_gate_inp.scale",
            shape=(config.hidden_size,),
            times=_router_factor(config),
        )
        yield TensorRule(
            name=f"layers.{layer}.expert_scales.weight",
            source=f"blk.{layer}.ffn_down_exps.scale",
            shape=(n,),
        )


def _gguf_unused(config: ModelConfig) -> Collection[str]:
    """Return the names of k and v tensors that files have for layers which share other KV."""
    return {
        f"blk.{layer}.{part}.weight"
        for layer, shape in enumerate(config.layer_shapes)
        if shape.kv_layer >= 0
        for part in ("attn_k", "attn_v", "attn_k_norm")
    }


def _read_gguf_shapes(keys: ArchitectureKeys, sliding: tuple[bool, ...]) -> tuple[LayerShape, ...]:
    n_layers = len(sliding)
    name = "attention.shared_kv_layers"
    kv_layers = _shared_layers(sliding, keys.integer(name, 0, n_layers - 1, 0))
    if kv_layers is None:
        raise keys.error(name, "layers of either kind that are not shared")
    n_heads = _gguf_n_heads(keys, n_layers)
    kv_heads = keys.by_layer("attention.head_count_kv", n_layers, MAX_HEADS)
    if any(n_heads % n for n in kv_heads):
        raise keys.error("attention.head_count_kv", f"divisors of the {n_heads} heads")
    inner = keys.by_layer("feed_forward_length", n_layers, MAX_WIDTH)
    head_dims = {slides: _gguf_head_dim(keys, "_swa" if slides else "") for slides in set(sliding)}
    shapes: list[LayerShape] = []
    for layer, (slides, kv_layer) in enumerate(zip(sliding, kv_layers, strict=True)):
        if kv_layer >= 0 and kv_heads[layer] != kv_heads[kv_layer]:
            raise keys.error("attention.head_count_kv", f"in layer {layer} that of {kv_layer}")
        shapes.append(
            LayerShape(
                n_kv_heads=kv_heads[layer],
                head_dim=head_dims[slides],
                intermediate_size=inner[layer],
                kv_layer=kv_layer,
            )
        )
    return tuple(shapes)


def _gguf_n_heads(keys: ArchitectureKeys, n_layers: int) -> int:
    name = "attention.head_count"
    n_heads = keys.by_layer(name, n_layers, MAX_HEADS)
    if len({*n_heads}) > 1:
        raise keys.error(name, "one and the same number for all layers")
    return n_heads[0]


def _gguf_head_dim(keys: ArchitectureKeys, suffix: str) -> int:
    name = f"attention.key_length{suffix}"
    head_dim = keys.integer(name, 2, MAX_HEAD_DIM)
    if head_dim % 2:
        raise keys.error(name, f"an even number up to {MAX_HEAD_DIM}")
    keys.refuse_unless(f"attention.value_length{suffix}", head_dim)
    keys.refuse_unless(f"rope.dimension_count{suffix}", head_dim)
    return head_dim


def _read_gguf_ropes(
    keys: ArchitectureKeys, positions: int, divisors: NDArray[np.float64] | None
) -> tuple[Rope, Rope]:
    keys.refuse_unless("rope.scaling.type", "none")
    ropes = []
    for suffix, default in (("", 1e6), ("_swa", 1e4)):
        theta = keys.number(f"rope.freq_base{suffix}", 1e-3, 1e12, default)
        head_dim = keys.integer(f"attention.key_length{suffix}", 2, MAX_HEAD_DIM, 2)
        source = Fields({"rope_theta": theta}, keys.fields.source)
        ropes.append(read_rope(source, head_dim, positions))
    full, sliding = ropes
    if divisors is None:
        return full, sliding
    if divisors.shape != (len(full.inv_freq),):
        raise keys.error("attention.key_length", f"twice the {divisors.size} of rope_freqs")
    # A huge divisor, which makes the frequency nearly 0, means that the pair is not rotated.
    exact = (0.0 if d >= _NO_TURN else f / d for f, d in zip(full.inv_freq, divisors, strict=True))
    inv_freq = tuple(float(np.float32(f)) for f in exact)
    return replace(full, inv_freq=inv_freq), sliding


FAMILY = Family(
    hf={"gemma4_text": _read, "gemma4": _read_multimodal},
    classes={"gemma4_text": "Gemma4ForCausalLM", "gemma4": "Gemma4ForConditionalGeneration"},
    gguf={"gemma4": _read_gguf},
)
