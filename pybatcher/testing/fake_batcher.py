"""`fake_batcher`: a `Batcher` over a `FakeEngine`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..batcher import Batcher
from ..config import EngineConfig
from ..errors import EngineFailedError
from ..serving.engine_executor import StepEngine
from ..serving.runtime import Runtime
from ..serving.system_prompt import SHARED_PREFIXES
from ..text import ChatTemplate, Tokenizer
from .byte_tokenizer import byte_tokenizer
from .fake_engine import FakeEngine

__all__ = ["fake_batcher"]


def fake_batcher(
    engine: StepEngine | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    system_prompt: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_failure: Callable[[EngineFailedError], object] | None = None,
    **options: Any,
) -> Batcher:
    """A batcher that needs no model and no compiled engine.

    engine: None: one is made from the options. One that is given has options
        of its own. Of its sequences `max_prefixes` are for shared prefixes: two
        with a system prompt, else none, if not said otherwise.
    tokenizer: None: one token a byte.
    chat_template: Jinja source.
    clock: what deadlines, `batch_timeout` and timelines are measured with.
    on_failure: as of `Batcher`.
    """

    if engine is not None:
        options.setdefault("max_prefixes", 0 if system_prompt is None else SHARED_PREFIXES)

    def open_fake(config: EngineConfig) -> Runtime:
        return Runtime(
            FakeEngine.from_config(config) if engine is None else engine,
            tokenizer or byte_tokenizer(),
            ChatTemplate(chat_template),
            "fake",
        )

    return Batcher._over(open_fake, system_prompt, options, clock, on_failure)
