"""`from_torch`: open a transformers module in memory, without copying its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer as TokenizerBackend

from ..errors import ModelFormatError
from ..images import ImageProcessor, read_processor
from ..params.embedding_defaults import EmbeddingDefaults
from .checkpoints.blueprint import EMBEDDING
from .checkpoints.fields import Fields
from .checkpoints.loaded_model import LoadedModel, TokenizerParts
from .checkpoints.tensors import Tensor
from .families import class_names, read_blueprint
from .tokenizers.added_tokens import SPECIAL_TOKENS
from .tokenizers.tokenizer_files import build_parts, private_backend

__all__ = ["from_torch"]


def from_torch(module: Any, tokenizer: Any = None) -> LoadedModel:
    """Open a transformers language model in memory.

    module: an instance of a class that `families` lists (LlamaForCausalLM, Gemma3ForCausalLM, ...),
        with its parameters in CPU memory as float32, float16 or bfloat16. The result's matrices
        are views of the parameters: a training step after this call changes their values.
    tokenizer: a transformers tokenizer or a `tokenizers.Tokenizer`, which is copied; or, for a
        model that takes images, a processor of transformers, which has a tokenizer. None: prompts
        are token ids.

    Raises ModelFormatError for another class, or a parameter that cannot be used.
    """
    name = type(module).__name__
    if name not in class_names():
        supported = ", ".join(class_names())
        raise ModelFormatError(f"module is a {name}; expected one of {supported}")
    fields = Fields({**module.config.to_dict(), "architectures": [name]}, f"{name}.config")
    blueprint = read_blueprint(fields)
    _refuse_quantised(module, name)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = {
        key: value
        for key, value in module.state_dict(keep_vars=True).items()
        if key not in parameters and value.is_floating_point()
    }
    available = {
        **{key: _view(value, f"{name}: parameter {key}") for key, value in parameters.items()},
        **{key: _view(value, f"{name}: buffer {key}") for key, value in buffers.items()},
    }
    processor = None
    if hasattr(tokenizer, "image_processor"):
        processor = _image_processor(tokenizer, fields) if blueprint.vision is not None else None
        tokenizer = tokenizer.tokenizer
    tensors = blueprint.fill(available, name)
    generation = getattr(module, "generation_config", None)
    settings = {} if generation is None else generation.to_dict()
    return LoadedModel(
        config=blueprint.config_of(tensors),
        tensors=tensors,
        tokenizer=_parts(tokenizer, Fields(settings, f"{name}.generation_config"), fields),
        dtype=tensors[EMBEDDING].dtype,
        name=name,
        path=None,
        embedding=EmbeddingDefaults.of_model(blueprint.config.causal, blueprint.padding_token),
        generates=blueprint.generates,
        vision=blueprint.vision,
        image_processor=processor,
    )


def _image_processor(processor: Any, config: Fields) -> ImageProcessor | None:
    """Return the image processor of a transformers processor. Raises ModelFormatError."""
    tokenizer = processor.tokenizer
    values = {
        "processor_config.json": {
            **processor.to_dict(),
            "image_processor": processor.image_processor.to_dict(),
        },
        "tokenizer_config.json": {
            name: value for name, value in tokenizer.init_kwargs.items() if isinstance(value, str)
        },
    }
    return read_processor(
        config.text("model_type"), config, lambda name: Fields(values.get(name, {}), name)
    )


def _refuse_quantised(module: Any, name: str) -> None:
    """Raise ModelFormatError if a weight is packed, or a tensor of a library's own class."""
    import torch

    for key, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor) or type(value.detach()) is not torch.Tensor:
            raise ModelFormatError(
                f"{name}: {key} is a {type(value).__name__}, as in a module that was quantised; "
                "expected plain tensors: give the module as it was before, and the options of the "
                "batcher quantise it (dtype)"
            )


def _view(parameter: Any, source: str) -> Tensor:
    """Return a view of the parameter's memory; bf16 is uint16 bits. Raises ModelFormatError."""
    import torch

    if parameter.device.type != "cpu":
        raise ModelFormatError(
            f"{source} is on device {parameter.device}; expected cpu (module.to('cpu') moves it)"
        )
    kinds = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    kind = kinds.get(parameter.dtype)
    if kind is None or parameter.layout != torch.strided:
        raise ModelFormatError(
            f"{source} is {parameter.dtype} ({parameter.layout}); "
            "expected torch.float32, torch.float16 or torch.bfloat16"
        )
    plain = parameter.detach()
    if kind == "bf16":
        plain = plain.view(torch.uint16)
    return Tensor(np.asarray(plain.numpy()), kind, source)


def _parts(tokenizer: Any, generation: Fields, config: Fields) -> TokenizerParts:
    backend = tokenizer
    if tokenizer is not None and not isinstance(tokenizer, TokenizerBackend):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, TokenizerBackend):
            raise ModelFormatError(
                f"tokenizer is a {type(tokenizer).__name__}; expected a transformers tokenizer "
                "with a backend_tokenizer, a tokenizers.Tokenizer, or None"
            )
    if backend is not None:
        backend = private_backend(backend.to_str(), "tokenizer")
    special_tokens = {name: getattr(tokenizer, name, None) for name in SPECIAL_TOKENS}
    settings = Fields(special_tokens, "tokenizer")
    templates = getattr(tokenizer, "chat_template", None)
    if not isinstance(templates, dict):
        templates = {"default": templates}
    template, for_tools = templates.get("default"), templates.get("tool_use")
    return build_parts(backend, template, settings, generation, config, tool_template=for_tools)
