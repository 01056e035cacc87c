"""`fake_batcher`: a `Batcher` over a `FakeEngine`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer as Backend
from typing_extensions import Unpack

from ..batcher import Batcher
from ..errors import EngineFailedError
from ..models import tiny_path
from ..params.batcher_options import BatcherOptions
from ..params.config import EngineConfig, lists_options
from ..serving.engine_executor import StepEngine
from ..serving.runtime import Runtime
from ..serving.system_prompt import SHARED_PREFIXES
from ..text import ChatTemplate, Tokenizer
from ..text.output import DefaultTools, format_of
from .answers import AnsweringReader, Answers, AnswerSource
from .byte_tokenizer import byte_tokenizer
from .fake_engine import FakeEngine
from .fake_images import IMAGE_TOKEN, FakeImageProcessor

__all__ = ["fake_batcher"]


_SHIPPED_VOCABULARY = 2048


@lists_options
def fake_batcher(
    engine: StepEngine | None = None,
    *,
    answers: AnswerSource | None = None,
    tokenizer: Tokenizer | None = None,
    system_prompt: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_failure: Callable[[EngineFailedError], object] | None = None,
    **options: Unpack[BatcherOptions],
) -> Batcher:
    """Make a `Batcher` that needs no model and no compiled engine.

        async with fake_batcher(answers=["Hello."]) as batcher:
            answer = await batcher.chat([{"role": "user", "content": "Hi"}])

    engine: None makes a `FakeEngine` from the options. A given engine ignores the engine options.
        `max_prefixes` of its sequences are reserved for shared prefixes; for a given engine the
        default is two with a system prompt, else none.
    answers: the outputs of `generate`, `stream`, `chat` and `stream_chat`: a list with one for each
        output, in the order in which calls are made, or a function, which may be async, that gets
        the messages or the prompt. An answer is a text, or an assistant's message with `content`,
        `reasoning_content` and `tool_calls`, as `Completion.message` is one. None: outputs are
        random, but of calls with a constraint (json_schema, regex, choices, a required tool, ...)
        valid and short.
    tokenizer: None: with answers that of the shipped model, unless the vocabulary of `engine` is
        smaller; else `byte_tokenizer()`.
    clock: monotonic time in seconds, for deadlines, `batch_timeout` and timelines.
    on_failure: as for `Batcher`.
    options: as for `Batcher`. `chat_template`: None: with answers that of the shipped model, which
        takes tools, and images; else the model has none. The model takes images if its template
        writes `<|image|>` for each of them; a given engine needs `tower_rows` and a token more.

    An answer that a constraint of the call does not allow, and a call for which there is no answer,
    raise FakeAnswerError in that call. Raises ConfigError for answers of another type.
    """
    given = None if answers is None else Answers(answers)
    if engine is not None:
        options.setdefault("max_prefixes", 0 if system_prompt is None else SHARED_PREFIXES)

    def open_fake(config: EngineConfig, n_prefixes: int) -> Runtime:
        own, template = tokenizer, config.template_source
        if given is not None:
            if own is None and (engine is None or engine.vocab_size >= _SHIPPED_VOCABULARY):
                own = _shipped_tokenizer()
            template = template or _shipped_template()
        format = format_of(template)
        shows_images = config.vision and template is not None and IMAGE_TOKEN in template
        if own is None:
            own = byte_tokenizer(*([IMAGE_TOKEN] if shows_images else []))
        made = engine or FakeEngine.from_config(config, n_prefixes, _n_vocab(own))
        image_id = own.added_token_ids([IMAGE_TOKEN]).get(IMAGE_TOKEN, made.vocab_size)
        takes_images = shows_images and made.tower_rows and image_id < made.vocab_size
        return Runtime(
            made,
            own,
            ChatTemplate(template, default_tools=DefaultTools(format)),
            "fake",
            response_format=format,
            image_processor=FakeImageProcessor() if takes_images else None,
            image_limits=config.image_limits,
        )

    reader = partial(AnsweringReader, given)
    return Batcher._over(open_fake, system_prompt, options, clock, on_failure, reader)


def _shipped_tokenizer() -> Tokenizer:
    backend = Backend.from_file(str(tiny_path() / "tokenizer.json"))
    backend.add_special_tokens([IMAGE_TOKEN])
    # The end token is <|endoftext|>: <|end|>, which ends turns of the shipped model, is a part of
    # some formats of output.
    return Tokenizer(backend, bos_token_id=0, eos_token_ids=[1])


def _shipped_template() -> str:
    """Return the template of the shipped model, with parts that are images."""
    settings = json.loads((tiny_path() / "tokenizer_config.json").read_text("utf-8"))
    source = str(settings["chat_template"])
    content = "message['content'] if message['content'] is string else " + (
        f"message['content'] | map(attribute='text', default='{IMAGE_TOKEN}') | join"
    )
    return source.replace("(message['content'] or '')", f"({content})")


def _n_vocab(tokenizer: Tokenizer) -> int:
    """Return the least size of a vocabulary with all tokens of a tokenizer."""
    if tokenizer.definition is None:
        return FakeEngine.VOCAB_SIZE
    return max(Backend.from_str(tokenizer.definition).get_vocab().values(), default=0) + 1
