"""`Runtime`: an engine with the tokenizer and chat template of its model, and its openers.

The compiled engine and `pybatcher.loading` are imported when a model is opened, not before, so that
all other code can be used and tested without them, and starts faster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, InvalidRequestError, ModelFormatError
from ..models.hub import find_model
from ..params.config import EngineConfig
from ..params.embedding_defaults import EmbeddingDefaults
from ..scheduling import WAY_OUT_FOR_ENCODERS, way_out
from ..text import ChatTemplate, Tokenizer
from ..text.output import FORMATS, DefaultTools, ResponseFormat, format_of
from .engine_executor import StepEngine

if TYPE_CHECKING:
    from ..engine import Progress
    from ..images import ImageProcessor
    from ..loading import LoadedModel
    from .image_reader import ImageReader

__all__ = ["CheckpointOpener", "Opener", "Runtime", "open_checkpoint", "open_torch_module"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """An opened model: its engine, tokenizer and chat template.

    response_format: the format in which the model writes its turns of a chat.
    name: the display name of the model.
    fingerprint: identifies the files that the model was read from, "" if there are none. Two models
        with the same name and different fingerprints are different models.
    embedding: the embedding head, used if the caller chooses no pooling.
    generates: True if the model has an output head and is no encoder; else it only embeds.
    is_encoder: True if attention is bidirectional, so that a text is computed as a whole.
    sampling: fields of SamplingParams that the model's files recommend.
    image_processor: prepares images for the model; None: it takes none.
    image_limits: the fields `max_images`, `max_image_pixels` and `max_image_bytes` of `ModelInfo`.
    """

    engine: StepEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate = field(default_factory=lambda: ChatTemplate(None))
    name: str = ""
    fingerprint: str = ""
    response_format: ResponseFormat = FORMATS["generic"]
    embedding: EmbeddingDefaults = field(default_factory=EmbeddingDefaults)
    generates: bool = True
    is_encoder: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    image_processor: ImageProcessor | None = None
    image_limits: Mapping[str, int] = field(default_factory=lambda: EngineConfig().image_limits)

    def takes_images(self) -> bool:
        """Return whether chats may have images. May render a chat, which takes milliseconds."""
        processor = self.image_processor
        return processor is not None and self.chat_template.takes_images(processor.placeholder)

    def image_reader(self, start_over: Callable[[], object]) -> ImageReader | None:
        """Return a reader of images; None if the model takes none, as one without a tokenizer.

        start_over: as in `ImageIds`. Raises ModelFormatError for a tokenizer without the image
        token.
        """
        processor = self.image_processor
        if processor is None or not self.tokenizer.available:
            return None
        from ..images import ImageLimits
        from .image_reader import ImageReader

        token = processor.image_token
        ids = self.tokenizer.added_token_ids([token])
        if ids.get(token, self.engine.vocab_size) >= self.engine.vocab_size:
            raise ModelFormatError(
                f"tokenizer: the image token {token!r} is no added token of the vocabulary; "
                "open the model with vision=False to use it without images"
            )
        limits = ImageLimits(
            max_images=self.image_limits["max_images"],
            max_pixels=self.image_limits["max_image_pixels"],
            max_bytes=self.image_limits["max_image_bytes"],
        )
        return ImageReader(processor, limits, ids[token], start_over)

    def only_embeds(self) -> InvalidRequestError:
        """Return the error for generating or scoring with a model that can only embed."""
        why = "is an encoder" if self.is_encoder else "has no head and no tied embedding"
        return InvalidRequestError(
            f"model {self.name!r} {why}, so that it can neither generate nor score: it embeds "
            "(`embed`)"
        )

    def check_prefixes(self) -> None:
        """Raise InvalidRequestError for a model whose texts cannot share a prefix."""
        if self.is_encoder:
            raise InvalidRequestError(
                f"model {self.name!r} is an encoder: what it computes of a prefix depends on what "
                "follows, so that none can be shared; embed whole texts (`embed`)"
            )

    def way_out_of_length(self) -> str:
        """Return the remedy for a text that is too long, for an error's message."""
        return WAY_OUT_FOR_ENCODERS if self.is_encoder else way_out(self.engine, "shorten it")


Opener = Callable[[EngineConfig, int], Runtime]
"""Opens a model with these options, and with so many sequences more, for shared prefixes.

Blocks; called on a thread of its own.
"""


def open_checkpoint(
    path: str | os.PathLike[str] | None,
    progress: Progress | None,
    config: EngineConfig,
    n_prefixes: int = 0,
) -> Runtime:
    """Open a directory or a GGUF file; None: the shipped model. Raises ModelFormatError."""
    from ..engine import open_guarded

    return _from_loaded(open_guarded(path, config), config, n_prefixes, progress)


class CheckpointOpener:
    """Opens a model by path or by its name on the hub, which is resolved once."""

    def __init__(self, model: str | None, progress: Progress | None) -> None:
        self._model = model
        self._path: Path | None = None
        self._progress = progress

    def __call__(self, config: EngineConfig, n_prefixes: int) -> Runtime:
        """Open the model, also again after the engine failed. Raises ModelFormatError."""
        if self._path is None and self._model is not None:
            self._path = find_model(self._model, self._progress)
        return open_checkpoint(self._path, self._progress, config, n_prefixes)


def open_torch_module(
    module: Any, tokenizer: Any, config: EngineConfig, n_prefixes: int
) -> Runtime:
    """Open a transformers module of this process, without files. Raises ModelFormatError."""
    from ..loading import from_torch

    return _from_loaded(from_torch(module, tokenizer), config, n_prefixes, None)


def _from_loaded(
    model: LoadedModel, config: EngineConfig, n_prefixes: int, progress: Progress | None
) -> Runtime:
    from ..engine import Engine
    from ..loading.tokenizers.growth import growth_of

    parts = model.tokenizer.with_template(config.template_source)
    tokenizer = Tokenizer(
        parts.backend,
        bos_token_id=parts.bos_token_id,
        eos_token_ids=parts.eos_token_ids,
        growth=None if parts.backend is None else growth_of(parts.backend),
    )
    text = "\n".join(filter(None, (parts.chat_template, parts.tool_template)))
    format = format_of(text, model.config.architecture, parts.response_template)
    template = ChatTemplate(
        parts.chat_template,
        special_tokens=parts.special_tokens,
        tool_source=parts.tool_template,
        default_tools=DefaultTools(format),
    )
    if config.template_source is not None:
        try:
            template.check()
        except ModelFormatError as error:
            raise ConfigError(str(error), field="chat_template") from error
    engine = Engine.from_loaded(model, config, progress, n_prefixes)
    return Runtime(
        engine,
        tokenizer,
        template,
        model.name,
        model.fingerprint,
        format,
        model.embedding,
        model.generates,
        not model.config.causal,
        parts.sampling,
        model.image_processor if config.vision else None,
        config.image_limits,
    )
