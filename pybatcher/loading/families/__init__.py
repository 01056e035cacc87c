"""One module for each family of architectures: reads config.json, knows the tensor names."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields, shown
from . import (
    bert,
    gemma,
    gemma4,
    gpt2,
    gpt_oss,
    granite,
    internlm3,
    lfm2,
    llama,
    ministral,
    modernbert,
    moe,
    olmo,
    phi3,
    qwen3_5,
    smollm3,
)

__all__ = ["BASE_CLASSES", "CLASSES", "ENCODER_CLASSES", "read_blueprint"]

_READERS = {
    "llama": llama.read,
    "mistral": llama.read,
    "qwen2": llama.read,
    "qwen3": llama.read,
    "qwen3_moe": moe.read,
    "qwen3_5_text": qwen3_5.read,
    "qwen3_5": qwen3_5.read_multimodal,
    "qwen3_5_moe_text": qwen3_5.read,
    "qwen3_5_moe": qwen3_5.read_multimodal,
    "mixtral": moe.read,
    "lfm2": lfm2.read,
    "lfm2_moe": lfm2.read,
    "lfm2_vl": lfm2.read_multimodal,
    "gpt2": gpt2.read,
    "gpt_oss": gpt_oss.read,
    "gemma2": gemma.read,
    "gemma3_text": gemma.read,
    "gemma3": gemma.read_multimodal,
    "gemma4_text": gemma4.read,
    "gemma4": gemma4.read_multimodal,
    "granite": granite.read,
    "granitemoehybrid": granite.read_hybrid,
    "olmo2": olmo.read,
    "olmo3": olmo.read,
    "smollm3": smollm3.read,
    "phi3": phi3.read,
    "internlm3": internlm3.read,
    "ministral": ministral.read,
    "ministral3": ministral.read,
    "mistral3": ministral.read_multimodal,
    "bert": bert.read,
    "roberta": bert.read,
    "xlm-roberta": bert.read,
    "modernbert": modernbert.read,
}

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "mixtral": "MixtralForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "lfm2_vl": "Lfm2VlForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
    "gpt_oss": "GptOssForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "internlm3": "LlamaForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral3": "Mistral3ForConditionalGeneration",
}
"""The transformers class of each architecture's language model."""

BASE_CLASSES = {
    "llama": "LlamaModel",
    "mistral": "MistralModel",
    "qwen2": "Qwen2Model",
    "qwen3": "Qwen3Model",
    "gemma3_text": "Gemma3TextModel",
}
"""The transformers class of the model without a head, as embedders are saved, where it loads."""

ENCODER_CLASSES = {
    "bert": ("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    "roberta": ("RobertaModel", "RobertaForMaskedLM"),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaForMaskedLM"),
    "modernbert": ("ModernBertModel", "ModernBertForMaskedLM"),
}
"""The transformers classes of encoders, whose heads are left out."""

_PUBLISHED_AS = {"internlm3": "InternLM3ForCausalLM"}
"""The class in files that transformers has not written, where it is another one."""


def read_blueprint(fields: Fields) -> Blueprint:
    """Return the blueprint of the model that config.json describes.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    architecture = fields.text("model_type")
    if architecture not in _READERS:
        raise fields.error("model_type", "one of " + ", ".join(map(repr, _READERS)))
    if architecture in ENCODER_CLASSES:
        _check_encoder(fields, ENCODER_CLASSES[architecture])
        return _READERS[architecture](fields)
    classes = fields.get("architectures")
    expected = _PUBLISHED_AS.get(architecture, CLASSES[architecture])
    known = {expected, CLASSES[architecture]}
    base = BASE_CLASSES.get(architecture)
    if classes is not None and not _is_list_of_names(classes):
        classes = [""]
    is_base = classes is not None and base in classes and not known.intersection(classes)
    if classes is not None and not is_base and not known.intersection(classes):
        raise fields.error("architectures", f"[{expected!r}], as model_type is {architecture!r}")
    _refuse_quantised(fields)
    blueprint = _READERS[architecture](fields)
    if base is not None:  # a model without a head is saved without the "model." of all others
        blueprint = replace(blueprint, prefix="model.")
    return blueprint.without_head() if is_base else blueprint


def _is_list_of_names(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


def _check_encoder(fields: Fields, known: tuple[str, ...]) -> None:
    """Raise ModelFormatError for a head that is more than left out, and for quantised weights."""
    classes = fields.get("architectures")
    is_list = isinstance(classes, list)
    if classes is not None and not (is_list and any(name in classes for name in known)):
        raise fields.error(
            "architectures",
            f"a list with one of {', '.join(map(repr, known))}: encoders embed, and neither "
            "classify nor rank",
        )
    _refuse_quantised(fields)


def _refuse_quantised(fields: Fields) -> None:
    """Raise ModelFormatError for a checkpoint of quantised weights; names the method."""
    found = fields.get("quantization_config")
    if found is None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else None
    if method == "mxfp4" and fields.get("model_type") == "gpt_oss":
        return
    raise fields.error(
        "quantization_config",
        f"no such field: weights quantised by {shown(method) if method else 'another program'} are "
        "not read. The model's bf16, f16 or f32 checkpoint is, quantised while it is loaded with "
        "dtype='int8' or 'int4'; and its GGUF files are",
    )
