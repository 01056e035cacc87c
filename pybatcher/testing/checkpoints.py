"""Make tiny random checkpoints of every architecture, as Hugging Face directories.

For tests: small enough to be made in each test. By default few dimensions are equal, so that a test
    fails if two are confused. Needs torch and transformers, which are imported when a checkpoint is
    made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

__all__ = ["ARCHITECTURES", "ENCODERS", "make_checkpoint", "make_module", "make_tokenizer"]

ARCHITECTURES = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "mixtral"),
    *("gpt2", "gpt_oss", "gemma2", "gemma3", "gemma4", "granite", "olmo2", "olmo3", "smollm3"),
    *("phi3", "ministral3", "lfm2", "lfm2_moe"),
)

ENCODERS = ("bert", "roberta", "xlm_roberta", "modernbert", "embedding_gemma")

_ROTARY = {
    "vocab_size": 384,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
_GEMMA = {
    **_ROTARY,
    "head_dim": 16,
    "sliding_window": 24,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
_QWEN_3_5: dict[str, Any] = {
    **_ROTARY,
    "num_hidden_layers": 5,
    "layer_types": [
        *("linear_attention", "full_attention", "linear_attention"),
        *("linear_attention", "full_attention"),
    ],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
}
_LFM2: dict[str, Any] = {
    **_ROTARY,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_auto_adjust_ff_dim": False,
    "pad_token_id": None,
}
_BERT = {
    "vocab_size": 384,
    "hidden_size": 60,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": 514,
    "type_vocab_size": 2,
    "initializer_range": 0.2,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_ROTARY, "head_dim": 16},
    "mistral": {**_ROTARY, "head_dim": 12, "sliding_window": 24},
    "qwen2": {**_ROTARY, "tie_word_embeddings": True},
    "qwen3": {**_ROTARY, "head_dim": 20},
    "qwen3_moe": {
        **_ROTARY,
        "head_dim": 20,
        "moe_intermediate_size": 40,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_moe": {
        **_QWEN_3_5,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "num_experts": 6,
        "num_experts_per_tok": 3,
    },
    "lfm2": _LFM2,
    "lfm2_moe": {
        **_LFM2,
        "moe_intermediate_size": 40,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.7,
    },
    "mixtral": {**_ROTARY, "num_local_experts": 5, "num_experts_per_tok": 2},
    "gpt_oss": {
        **_ROTARY,
        "head_dim": 16,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 24,
        "swiglu_limit": 1.5,
    },
    "smollm3": {
        **_ROTARY,
        "tie_word_embeddings": True,
        "no_rope_layer_interval": 2,
        "pad_token_id": None,
    },
    "phi3": {**_ROTARY, "sliding_window": 24, "pad_token_id": None},
    "internlm3": {**_ROTARY, "head_dim": 16, "pad_token_id": None},
    "ministral": {**_ROTARY, "head_dim": 12, "sliding_window": 24},
    "ministral3": {
        **_ROTARY,
        "head_dim": 12,
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3,
        },
    },
    "gpt2": {
        "vocab_size": 384,
        "n_embd": 60,
        "n_layer": 3,
        "n_head": 5,
        "n_inner": 112,
        "n_positions": 512,
        "initializer_range": 0.2,
    },
    "gemma2": {
        **_GEMMA,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3": {**_GEMMA, "query_pre_attn_scalar": 9, "sliding_window_pattern": 2},
    "bert": _BERT,
    "roberta": {**_BERT, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm_roberta": {**_BERT, "type_vocab_size": 1, "pad_token_id": 1},
    "modernbert": {
        "vocab_size": 384,
        "hidden_size": 60,
        "intermediate_size": 112,
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "max_position_embeddings": 512,
        "local_attention": 24,
        "initializer_range": 0.2,
        **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 1),
    },
    "embedding_gemma": {
        **_GEMMA,
        "hidden_size": 96,
        "query_pre_attn_scalar": 9,
        "sliding_window_pattern": 2,
        "use_bidirectional_attention": True,
    },
    "gemma4": {
        **_GEMMA,
        "head_dim": 12,
        "global_head_dim": 20,
        "num_global_key_value_heads": 3,
        "attention_k_eq_v": True,
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 2,
        "layer_types": [
            *("sliding_attention", "sliding_attention", "full_attention"),
            *("sliding_attention", "full_attention"),
        ],
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 10,
        "final_logit_softcapping": 8.0,
    },
    "granite": {
        **_ROTARY,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.4,
        "logits_scaling": 2.5,
    },
    "granitemoehybrid": {
        **_ROTARY,
        "shared_intermediate_size": 88,
        "num_local_experts": 0,
        "layer_types": ["attention"] * 3,
        "position_embedding_type": "rope",
        "mamba_n_heads": 1,  # transformers checks it although there are no such layers
    },
    "olmo2": {**_ROTARY, "pad_token_id": None},
    "olmo3": {
        **_ROTARY,
        "pad_token_id": None,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM"),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "bert": ("BertConfig", "BertModel"),
    "roberta": ("RobertaConfig", "RobertaModel"),
    "xlm_roberta": ("XLMRobertaConfig", "XLMRobertaModel"),
    "modernbert": ("ModernBertConfig", "ModernBertModel"),
    "embedding_gemma": ("Gemma3TextConfig", "Gemma3TextModel"),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM"),
    "granite": ("GraniteConfig", "GraniteForCausalLM"),
    "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "internlm3": ("InternLM3Config", "LlamaForCausalLM"),
    "ministral": ("MinistralConfig", "MinistralForCausalLM"),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM"),
}
_PLUS_ONE = ("gemma2", "gemma3", "embedding_gemma", "qwen3_5", "qwen3_5_moe")
_SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def make_module(
    architecture: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> Any:
    """Make a transformers module with random weights, in eval mode.

    architecture: one of ARCHITECTURES or ENCODERS, or "internlm3", "ministral" or
        "granitemoehybrid", whose files alone differ from those of llama, mistral and granite; or
        any `model_type` of a causal language model that transformers has.
    dtype: "float32", "bfloat16" or "float16".
    overrides: fields of the transformers configuration. Biases and norm weights are random too, so
        that outputs differ if one is not applied. Norms of Gemma 2 and 3 multiply by 1 + weight.
    """
    import torch
    import transformers

    defaults = _DEFAULTS.get(architecture, {**_ROTARY, "pad_token_id": None})
    settings = {"bos_token_id": 0, "eos_token_id": 1, **defaults, **overrides}
    if "layer_types" in settings and "layer_types" not in overrides:
        settings["layer_types"] = settings["layer_types"][: settings["num_hidden_layers"]]
    if architecture == "gemma4":
        n_layers = _DEFAULTS["gemma4"]["num_hidden_layers"]
        fewer = {} if settings["num_hidden_layers"] >= n_layers else {"num_kv_shared_layers": 0}
        settings |= {"vocab_size_per_layer_input": settings["vocab_size"], **fewer, **overrides}
    if architecture in _CLASSES:
        config_class, model_class = _CLASSES[architecture]
        config = getattr(transformers, config_class)(**settings)
    else:
        config = transformers.AutoConfig.for_model(architecture, **settings)
        model_class = transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = getattr(transformers, model_class)(config)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("e_score_correction_bias"):
                    parameter.uniform_(-0.2, 0.2)
                elif parameter.ndim == 1 or name.endswith("_bias"):
                    is_factor = name.endswith(("weight", "scale"))
                    centre = 1.0 if is_factor and architecture not in _PLUS_ONE else 0.0
                    if name.endswith("linear_attn.norm.weight"):
                        centre = 1.0
                    if architecture == "gemma4" and name.endswith("q_norm.weight"):
                        # this architecture does not scale its scores
                        centre = parameter.numel() ** -0.5
                    if name.endswith("router.scale"):
                        centre = parameter.numel() ** 0.5  # this architecture divides by it
                    parameter.copy_(centre + 0.1 * torch.randn_like(parameter))
                    if name.endswith("A_log"):  # spread from long memories to short ones
                        parameter.uniform_(-4.0, 2.0)
                    if name.endswith(("act_fn.alpha_p", "act_fn.alpha_n")):
                        parameter.uniform_(-2.0, 2.0)
            for name, buffer in module.named_buffers():
                if name.endswith("layer_scalar"):
                    buffer.copy_(torch.empty_like(buffer).uniform_(0.5, 1.5))
                if name.endswith(("expert_bias", "e_score_correction_bias")):
                    buffer.copy_(torch.empty_like(buffer).uniform_(-0.2, 0.2))
                if name.endswith("act_fn.beta"):  # eps stays tiny: f jumps by alpha_n * eps at 0
                    buffer.copy_(torch.empty_like(buffer).uniform_(0.2, 0.8))
            for parameter in module.parameters():  # the rotary buffers stay float32
                parameter.data = parameter.data.to(getattr(torch, dtype))
    return module.eval()


def make_tokenizer(vocab_size: int = 384) -> Tokenizer:
    """Train a byte-level BPE tokenizer of at most `vocab_size` (>= 260) tokens, in memory.

    Ids 0 to 3 are special: <|begin|> (added before every text), <|end|>,
    <|im_start|>, <|im_end|>.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 4, trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]),
        ]
    )
    return tokenizer


def make_checkpoint(
    directory: str | os.PathLike[str],
    architecture: str,
    *,
    seed: int = 0,
    dtype: str = "float32",
    tokenizer: bool = True,
    chat_template: str | None = _CHAT_TEMPLATE,
    max_shard_size: str | int = "5GB",
    **overrides: Any,
) -> Path:
    """Save `make_module(...)` and a tokenizer as a Hugging Face directory; return its path.

    tokenizer: write tokenizer.json and tokenizer_config.json.
    chat_template: written to tokenizer_config.json; None = no template.
    max_shard_size: passed to save_pretrained; a small one gives many files.
    """
    from transformers import PreTrainedTokenizerFast

    path = Path(directory)
    module = make_module(architecture, seed=seed, dtype=dtype, **overrides)
    with _without_progress_bar():
        module.save_pretrained(path, max_shard_size=max_shard_size)
    if tokenizer:
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=make_tokenizer(min(module.config.vocab_size, 384)),
            bos_token="<|begin|>",
            eos_token="<|end|>",
            clean_up_tokenization_spaces=False,
        )
        wrapped.chat_template = chat_template
        wrapped.save_pretrained(path)
    return path


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


_TEXT = """\
Once upon a time there was a small fox who lived at the edge of a forest. Every morning the
fox looked at the river and wondered where the water went. What is the colour of the sky?
The sky is blue. How many legs has a spider? A spider has eight legs. When the sun went down,
the fox said: "Tomorrow I will follow the river." So the fox walked past the old mill, over
the bridge and through the fields, until the river was as wide as the night.
"""
