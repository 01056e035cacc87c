"""Read a checkpoint's defaults for embedding texts from sentence-transformers' files.

`modules.json` lists the modules after the transformer: pooling, and optionally dense layers and
normalisation. `sentence_bert_config.json` has the settings of the transformer, and
`config_sentence_transformers.json` those of the whole.
https://sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from ...errors import ModelFormatError
from ...params.embedding_defaults import EmbeddingDefaults
from ...params.embedding_head import DenseLayer, EmbeddingHead
from ..checkpoints.fields import Fields, shown
from ..checkpoints.json_file import read_fields, read_list, read_optional
from ..checkpoints.limits import MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.model_files import is_file
from ..checkpoints.tensors import TensorRule, as_f32, gather
from .safetensors_file import map_tensors

__all__ = ["lowers_texts", "read_embedding_defaults"]

_MODES: dict[str, Literal["last", "mean", "cls"]] = {
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_MOST = {"Transformer": 1, "Pooling": 1, "Dense": 8, "Normalize": 1}
"""The maximum number of modules of each kind, in the order in which kinds may follow."""
_ORDER = (*_MOST,)
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": False, _TANH: True}
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""The models after which `sentence_bert_config.json` may be named."""
_ARGUMENTS = {
    ("model_args", "model_kwargs"): (
        *("attn_implementation", "device_map", "dtype", "torch_dtype", "low_cpu_mem_usage"),
        *("trust_remote_code", "use_safetensors"),
    ),
    ("tokenizer_args", "processor_kwargs"): (
        *("model_max_length", "truncation_side", "padding_side", "trust_remote_code", "use_fast"),
    ),
    ("config_args", "config_kwargs"): ("trust_remote_code",),
    ("processing_kwargs",): (),
}
"""Objects of arguments in sentence_bert_config.json, and the ones that are read or have no effect.
"""
_MAX_TEXT = 2**20  # characters of a prompt
_SENTENCE = "sentence_embedding"


def read_embedding_defaults(
    directory: Path, config: ModelConfig, padding_token: int | None = None
) -> EmbeddingDefaults:
    """Return the defaults in the directory's `modules.json`, or, without that file, the model's.

    padding_token: as in `EmbeddingDefaults`.

    Raises ModelFormatError for a damaged file, and for an unsupported module, kind of pooling or
    argument.
    """
    tokenizer = read_optional(directory / "tokenizer_config.json")
    own = EmbeddingDefaults.of_model(config.causal, padding_token)
    own = replace(own, cuts_left=_cuts_left(tokenizer, False))
    path = directory / "modules.json"
    if not is_file(path):
        return own
    mode, normalised, before, has_prompt = "", False, "Transformer", True
    kinds: Counter[str] = Counter()
    layers: list[DenseLayer] = []
    width = config.hidden_size
    for item in read_list(path):
        module = _read_module(item, path)
        kind = module.text("type").rpartition(".")[2]
        if _ORDER.index(kind) < _ORDER.index(before):
            raise module.error("type", f"no {kind} after a {before} module")
        kinds[kind] += 1
        if kinds[kind] > _MOST[kind]:
            raise module.error("type", f"at most {_MOST[kind]} {kind} modules")
        before = kind
        if kind == "Pooling":
            pooling = read_fields(_folder(directory, module) / "config.json")
            mode, has_prompt = _read_mode(pooling), pooling.boolean("include_prompt", True)
        elif kind == "Dense":
            layers.append(_read_dense(_folder(directory, module), width))
            width = len(layers[-1].weight)
        elif kind == "Normalize":
            normalised = True
            _check_names(read_optional(_folder(directory, module) / "config.json"))
    if mode not in _MODES:
        expected = " or ".join(map(repr, _MODES))
        raise ModelFormatError(f"{path}: texts are pooled by {shown(mode)}; expected {expected}")
    whole = read_optional(directory / "config_sentence_transformers.json")
    prompt = _read_prompt(whole)
    if prompt and not has_prompt:
        raise whole.error("default_prompt_name", "null: include_prompt of the pooling is false")
    sentence = _read_sentence_config(directory)
    arguments = _arguments(sentence, "tokenizer_args", "processor_kwargs")
    return replace(
        own,
        pooling=_MODES[mode],
        normalised=normalised,
        head=EmbeddingHead(layers) if layers else None,
        dimensions=min(whole.integer("truncate_dim", 1, MAX_WIDTH, 0), width),
        max_tokens=_read_max_tokens(sentence, arguments, tokenizer),
        cuts_left=_cuts_left(arguments, own.cuts_left),
        prompt=prompt,
    )


def lowers_texts(directory: Path) -> bool:
    """Return True if texts are converted to lower case before they are tokenised."""
    has_modules = is_file(directory / "modules.json")
    return has_modules and _read_sentence_config(directory).boolean("do_lower_case", False)


def _read_module(item: object, path: Path) -> Fields:
    if not isinstance(item, dict):
        raise ModelFormatError(f"{path}: found {shown(item)}; expected a module, an object")
    module = Fields(item, str(path))
    if module.text("type").rpartition(".")[2] not in _ORDER:
        wanted = "that of a Transformer, a Pooling, a Dense or a Normalize module"
        raise module.error("type", wanted)
    return module


def _read_sentence_config(directory: Path) -> Fields:
    """Return the settings of the transformer module, which has one of several file names.

    Raises ModelFormatError for settings that change vectors and are not read.
    """
    folders = (directory, directory / "0_Transformer")
    files = [folder / f"sentence_{kind}_config.json" for folder in folders for kind in _KINDS]
    fields = read_optional(next((file for file in files if is_file(file)), files[0]))
    fields.refuse_unless("transformer_task", "feature-extraction")
    fields.refuse_unless("module_output_name", "token_embeddings")
    for name in ("query_length", "document_length", "query_expansion"):
        fields.refuse_unless(name)
    forms = fields.get("modality_config")
    if isinstance(forms, dict) and "text" not in forms:
        raise fields.error("modality_config", "one with 'text'")
    for names, known in _ARGUMENTS.items():
        for name in names:
            given = fields.child(name)
            for argument in given.names():
                if argument not in known and given.get(argument) not in (None, {}):
                    raise given.error(argument, "no such argument")
    return fields


def _arguments(fields: Fields, *names: str) -> Fields:
    """Return an object of arguments, which has one of two names."""
    return fields.child(next((name for name in names if name in fields), names[0]))


def _read_max_tokens(sentence: Fields, arguments: Fields, tokenizer: Fields) -> int:
    """Return the most tokens of a text; 0: the files have no limit.

    Without max_seq_length the tokenizer's own limit applies, which is a giant number if there is
    none.
    """
    named = ((arguments, "model_max_length"), (sentence, "max_seq_length"))
    for fields, name in (*named, (tokenizer, "model_max_length")):
        value = fields.get(name)
        if isinstance(value, float) and value.is_integer():
            fields = fields.with_values({name: int(value)})
        if value is not None:
            most: int = fields.integer(name, 1, 2**128)
            return most if most < 2**31 else 0
    return 0


def _cuts_left(fields: Fields, default: bool) -> bool:
    side = fields.text("truncation_side", "left" if default else "right")
    if side not in ("left", "right"):
        raise fields.error("truncation_side", "'left' or 'right'")
    return bool(side == "left")


def _read_prompt(whole: Fields) -> str:
    """Return the text that sentence-transformers adds to every text by default."""
    name = whole.text("default_prompt_name", None)
    if name is None:
        return ""
    prompt: str = whole.child("prompts").text(name)
    if len(prompt) > _MAX_TEXT:
        raise whole.error("prompts", f"texts of at most {_MAX_TEXT} characters")
    return prompt


def _check_names(module: Fields) -> None:
    """Raise ModelFormatError unless a module changes the vector of the text."""
    for name in ("module_input_name", "module_output_name"):
        module.refuse_unless(name, _SENTENCE)


def _folder(directory: Path, module: Fields) -> Path:
    """Return the module's folder. Raises ModelFormatError if it is outside of `directory`."""
    name = PurePosixPath(module.text("path"))
    is_plain = str(name).isprintable() and len(name.parts) == 1
    if not is_plain or name.is_absolute() or ".." in name.parts:
        raise module.error("path", "the name of a folder in the same directory")
    return directory / name


def _read_mode(pooling: Fields) -> str:
    """Return the kind of pooling, by its name or by one flag for each kind."""
    if "pooling_mode" in pooling:
        mode: str = pooling.text("pooling_mode")
        return mode
    found = [mode for name, mode in _OLD_MODES.items() if pooling.boolean(name, False)]
    return "+".join(found)


def _read_dense(folder: Path, n_in: int) -> DenseLayer:
    """Return a copy of the layer in `folder`. n_in: the width of its input."""
    fields = read_fields(folder / "config.json")
    fields.refuse_unless("in_features", n_in)
    n_out = fields.integer("out_features", 1, MAX_WIDTH)
    _check_names(fields)
    fields.refuse_unless("use_residual", False)
    activation = fields.text("activation_function", _TANH)
    if activation not in _ACTIVATIONS:
        raise fields.error("activation_function", " or ".join(map(repr, _ACTIVATIONS)))
    rules = [TensorRule(name="weight", source="linear.weight", shape=(n_out, n_in))]
    if fields.boolean("bias", True):
        rules.append(TensorRule(name="bias", source="linear.bias", shape=(n_out,)))
    path = folder / "model.safetensors"
    if not is_file(path):
        raise ModelFormatError(f"{path}: no such file; weights are read from safetensors only")
    tensors = gather(rules, map_tensors(path), str(path))
    return DenseLayer(
        as_f32(tensors["weight"]),
        as_f32(tensors["bias"]) if "bias" in tensors else None,
        _ACTIVATIONS[activation],
    )
