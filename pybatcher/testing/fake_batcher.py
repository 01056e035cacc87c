"""`fake_batcher`: a `Batcher` over a `FakeEngine`."""

from __future__ import annotations

import time
from collections.abc import Callable

from typing_extensions import Unpack

from ..batcher import Batcher
from ..errors import EngineFailedError
from ..params.batcher_options import BatcherOptions
from ..params.config import EngineConfig, lists_options
from ..serving.engine_executor import StepEngine
from ..serving.runtime import Runtime
from ..serving.system_prompt import SHARED_PREFIXES
from ..text import ChatTemplate, Tokenizer
from ..text.output import FORMATS, DefaultTools
from .byte_tokenizer import byte_tokenizer
from .fake_engine import FakeEngine

__all__ = ["fake_batcher"]


@lists_options
def fake_batcher(
    engine: StepEngine | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    system_prompt: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_failure: Callable[[EngineFailedError], object] | None = None,
    **options: Unpack[BatcherOptions],
) -> Batcher:
    """Make a `Batcher` that needs no model and no compiled engine.

    engine: None makes a `FakeEngine` from the options. A given engine ignores the engine options.
        `max_prefixes` of its sequences are reserved for shared prefixes; for a given engine the
        default is two with a system prompt, else none.
    tokenizer: None uses `byte_tokenizer()`.
    clock: monotonic time in seconds, for deadlines, `batch_timeout` and timelines.
    on_failure: as for `Batcher`.
    """

    if engine is not None:
        options.setdefault("max_prefixes", 0 if system_prompt is None else SHARED_PREFIXES)

    def open_fake(config: EngineConfig, n_prefixes: int) -> Runtime:
        return Runtime(
            FakeEngine.from_config(config, n_prefixes) if engine is None else engine,
            tokenizer or byte_tokenizer(),
            ChatTemplate(config.template_source, default_tools=DefaultTools(FORMATS["generic"])),
            "fake",
        )

    return Batcher._over(open_fake, system_prompt, options, clock, on_failure)
