"""Model families: one module for each, whose `FAMILY` describes it to the loader.

The modules are found by listing this folder and its subfolders: a new family is a new file.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields, shown
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_vision import GgufVision, Mmproj

__all__ = [
    "FAMILIES",
    "class_names",
    "gguf_architectures",
    "read_blueprint",
    "read_gguf_blueprint",
    "read_gguf_vision",
    "takes_images",
]


def _families() -> tuple[Family, ...]:
    found = walk_packages(__path__, f"{__name__}.")
    names = sorted(module.name for module in found if not module.ispkg)
    return tuple(import_module(name).FAMILY for name in names)


FAMILIES = _families()
_BY_TYPE = {kind: family for family in FAMILIES for kind in family.hf}
_POSITIONS = {
    **dict.fromkeys(
        (
            "exaone4",
            "granite",
            "granitemoehybrid",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "llama",
            "olmo2",
            "olmo3",
        ),
        2048,
    ),
    **dict.fromkeys(("arcee", "olmoe", "phi3", "stablelm", "starcoder2"), 4096),
    **dict.fromkeys(("cohere2", "gemma2"), 8192),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "smollm3"),
        32768,
    ),
    "apertus": 65536,
    **dict.fromkeys(("lfm2", "lfm2_moe"), 128000),
    **dict.fromkeys(
        (
            "ernie4_5",
            "ernie4_5_moe",
            "gemma3_text",
            "gemma4_text",
            "glm4",
            "glm4_moe",
            "gpt_oss",
            "ministral",
            "mistral",
            "mixtral",
        ),
        131072,
    ),
    "minimax_m2": 196608,
    "ministral3": 262144,
    "seed_oss": 524288,
}
"""transformers' default of max_position_embeddings, by `model_type`."""
_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.gguf}
_BY_PROJECTOR = {kind: reader for family in FAMILIES for kind, reader in family.gguf_vision.items()}


def class_names() -> list[str]:
    """Return the names of all transformers classes that can be opened."""
    classes = [family.classes_of(kind) for kind, family in sorted(_BY_TYPE.items())]
    return list(dict.fromkeys(name for of_type in classes for name in of_type.names()))


def gguf_architectures() -> list[str]:
    """Return the architectures of GGUF files that can be opened."""
    return sorted(_BY_ARCHITECTURE)


def read_gguf_blueprint(contents: GgufContents) -> Blueprint:
    """Return the blueprint of the model that a GGUF file's metadata describe.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    architecture = contents.architecture
    if architecture not in _BY_ARCHITECTURE:
        expected = "one of " + ", ".join(map(repr, gguf_architectures()))
        raise contents.metadata.error("general.architecture", expected)
    return _BY_ARCHITECTURE[architecture].gguf[architecture](contents)


def takes_images(architecture: str) -> bool:
    """Return True if a GGUF model of this architecture may have a vision tower."""
    return any(architecture in reader.architectures for reader in _BY_PROJECTOR.values())


def read_gguf_vision(mmproj: Mmproj, blueprint: Blueprint) -> GgufVision:
    """Return the vision tower and the image processor that an mmproj file describes.

    blueprint: of the GGUF file with the language model.

    Raises ModelFormatError for an unsupported projector or option, an impossible size, and a tower
    of another model.
    """
    metadata = mmproj.metadata
    mixed = "clip.vision.projector_type"  # of a file that has a tower for sounds too
    key = mixed if mixed in metadata else "clip.projector_type"
    kind = metadata.text(key)
    if kind not in _BY_PROJECTOR:
        expected = "one of " + ", ".join(map(repr, sorted(_BY_PROJECTOR)))
        raise metadata.error(key, expected)
    reader = _BY_PROJECTOR[kind]
    architecture = mmproj.text.architecture
    if architecture not in reader.architectures:
        raise metadata.error(
            key, f"one for {architecture}, the architecture of {mmproj.text.metadata.source}"
        )
    return reader.read(mmproj, blueprint)


def read_blueprint(fields: Fields) -> Blueprint:
    """Return the blueprint of the model that config.json describes.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    model_type = fields.text("model_type")
    if model_type not in _BY_TYPE:
        raise fields.error("model_type", "one of " + ", ".join(map(repr, sorted(_BY_TYPE))))
    if model_type in _POSITIONS:
        fields = fields.with_defaults({"max_position_embeddings": _POSITIONS[model_type]})
    family = _BY_TYPE[model_type]
    known = family.classes_of(model_type)
    is_base = _check_classes(fields, model_type, known)
    _refuse_quantised(fields, family)
    blueprint = family.hf[model_type](fields)
    if known.base:  # transformers saves a model without a head without the prefix "model."
        blueprint = replace(blueprint, prefix="model.")
    blueprint = blueprint.without_head() if is_base else blueprint
    if known.encoders:
        fields.refuse_unless("is_causal", False)
        return blueprint
    return blueprint if _is_causal(fields, blueprint) else blueprint.bidirectional()


def _is_causal(fields: Fields, blueprint: Blueprint) -> bool:
    """Return False if `is_causal` makes attention bidirectional in a decoder.

    As in transformers, the field of a model with images takes precedence over its text model's.
    Raises ModelFormatError for a decoder that cannot be computed so.
    """
    text = fields.child("text_config") if blueprint.text_prefixes else fields
    owner = fields if "is_causal" in fields else text
    config = blueprint.config
    if owner.boolean("is_causal", True):
        return True
    if any(config.recurrent_layers) or config.parallel_blocks:
        raise owner.error(
            "is_causal", "true: recurrent layers and parallel blocks are computed causally only"
        )
    return False


def _check_classes(fields: Fields, model_type: str, known: ModelClasses) -> bool:
    """Return True if the model was saved without a head.

    Raises ModelFormatError for an unknown class, and for an encoder whose head cannot be ignored.
    """
    classes = fields.get("architectures")
    if classes is None:
        return False
    is_list = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    names = set(classes) if is_list else set()
    if known.encoders:
        if not names.intersection(known.encoders):
            raise fields.error(
                "architectures",
                f"a list with one of {', '.join(map(repr, known.encoders))}: encoders embed, and "
                "neither classify nor rank",
            )
        return False
    expected = known.published or known.model
    if names.intersection((expected, known.model)):
        return False
    if known.base and known.base in names:
        return True
    raise fields.error("architectures", f"[{expected!r}], as model_type is {model_type!r}")


def _refuse_quantised(fields: Fields, family: Family) -> None:
    """Raise ModelFormatError, which names the method, for a checkpoint of quantised weights."""
    found = fields.get("quantization_config")
    if found is None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else None
    if isinstance(method, str) and method in family.quant_methods:
        return
    raise fields.error(
        "quantization_config",
        f"no such field: weights quantised by {shown(method) if method else 'another program'} are "
        "not read. The model's bf16, f16 or f32 checkpoint is, quantised while it is loaded with "
        "dtype='int8' or 'int4'; and its GGUF files are",
    )
