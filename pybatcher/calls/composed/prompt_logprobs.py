"""`generate(prompt_logprobs=...)`: scores a prompt beside its continuation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import InvalidRequestError, RequestTooLongError
from ...errors.checks import REQUEST, plain_int
from ...scheduling.plan import TopLogprobs
from ..arguments import check_top_logprobs, merge_params
from ..call import OF_EVERY_CALL, Call, Question
from ..completion import Completion, prompt_alone
from ..questions import ScoreContinuations, Tokenize
from ..telemetry import CURRENT_COUNTS

__all__ = ["check_prompt_logprobs", "complete_with_prompt"]

_ANY_TOKEN = 2**63  # the service checks token ids against the model's vocabulary


def check_prompt_logprobs(options: Mapping[str, Any]) -> int | None:
    """Return the number of likeliest tokens to report per prompt token; None: no scores.

    True counts as 0. Raises InvalidRequestError, also if the prompt cannot be scored.
    """
    asked = options.get("prompt_logprobs")
    if asked is None:
        return None
    if plain_int(asked) is not None:
        n_top = check_top_logprobs("prompt_logprobs", asked)
    elif REQUEST.flag("prompt_logprobs", asked):
        n_top = 0
    else:
        return None
    if "output" in options:
        raise InvalidRequestError(
            "prompt_logprobs goes with a prompt that has no output yet", field="prompt_logprobs"
        )
    return n_top


async def complete_with_prompt(
    call: Call,
    n_top: int,
    ask: Callable[[Question[Any]], Awaitable[Any]],
    complete: Callable[[Call], Awaitable[Completion]],
) -> Completion:
    """Continue a prompt, unless `max_tokens` is 0, and score its own tokens beside it.

    n_top: likeliest tokens to report for each token of the prompt; 0: none.
    """
    began = time.monotonic()
    tokens = await ask(Tokenize(content=call.content))
    own = {name: getattr(call, name) for name in OF_EVERY_CALL}
    asked = ScoreContinuations(
        prompt=tokens[:1], continuations=[tokens[1:]], top_logprobs=n_top, **own
    )

    async def score() -> tuple[tuple[float | None, ...], tuple[TopLogprobs, ...] | None]:
        if len(tokens) < 2:
            return (None,), ((),) if n_top else None
        try:
            (found,) = await ask(asked)
        except RequestTooLongError as error:  # it counts without the first token, or the last
            limit = str(error).find("; a sequence has ")
            if limit < 0:
                raise
            raise RequestTooLongError(
                f"prompt has {len(tokens)} tokens{str(error)[limit:]}", field="prompt"
            ) from error
        return (None, *found.token_logprobs), ((), *found.top_logprobs) if n_top else None

    if plain_int(call.sampling.get("max_tokens")) == 0:
        merge_params(call.params, {**call.sampling, "max_tokens": 1}, vocab_size=_ANY_TOKEN)
        scores = await score()
        if (counts := CURRENT_COUNTS.get()) is not None:
            counts.add_prompt(len(tokens))
        return prompt_alone(tokens, *scores, began)
    drawing = asyncio.ensure_future(complete(replace(call, content=tokens)))
    try:
        logprobs, top_logprobs = await score()
        made = await drawing
        return replace(made, prompt_logprobs=logprobs, prompt_top_logprobs=top_logprobs)
    finally:
        drawing.cancel()
