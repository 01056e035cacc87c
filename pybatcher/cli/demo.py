"""`pybatcher demo`: answer eight callers together, then one after another, and compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from ..batcher import Batcher
from ..calls.completion import Completion
from ..calls.stream import Stream
from ..errors import InvalidRequestError
from ..models import DEMO_PROMPTS
from ..params import SamplingParams
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from .demo_values import values_shown
from .demo_view import DemoView, Transcript
from .figures import Figures
from .loading_bar import loading_bar
from .options import ModelArgument, ModelOption, chosen_model, takes_options

__all__ = ["demo", "same_answers"]

TEXTS_DIFFER = 1  # exit status
WARM_UP = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"})
DemoPrompt = str | tuple[dict[str, str], ...]
MaxTokensOption = Annotated[int, typer.Option(help="Most tokens of an answer.")]


@takes_options(
    SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig, only=("temperature", "seed")
)
def demo(
    name: ModelArgument = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = 256,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Answer eight callers together, then one after another: equal texts in less time.

    Then fill a JSON schema and call functions, where the model can.

    Exit status: 0 all texts are equal, 1 they are not.
    """
    path = chosen_model(name, model)
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    with loading_bar() as progress:
        callers = Callers(Batcher(path, progress=progress, **options), params)
        equal = asyncio.run(_show(callers))
    if not equal:
        raise typer.Exit(TEXTS_DIFFER)


async def _show(callers: Callers) -> bool:
    """Run and draw the whole demo. Return True if all three runs gave equal answers."""
    view = DemoView(Console(highlight=False))
    async with callers.batcher:
        await callers.get_ready()
        transcripts = [Transcript(question) for question in callers.questions]
        async with view.watching(transcripts):
            watched = await callers.stream_together(transcripts)
        together = await callers.together()
        in_turn = await callers.in_turn()
        values = await values_shown(callers.batcher)
    equal = same_answers(watched, together.completions, in_turn.completions)
    view.show_figures(together, in_turn)
    view.show_verdict(equal)
    view.show_lines(values)
    return equal


class Callers:
    """The demo's callers, with the three runs: streamed, together, in turn.

    Each run has its own prefix-cache namespaces, so that none uses KV of an earlier run.
    """

    def __init__(self, batcher: Batcher, params: SamplingParams) -> None:
        self.batcher = batcher
        self._params = params
        self._prompts = DEMO_PROMPTS

    @property
    def questions(self) -> list[str]:
        """The prompt of each caller, as one text."""
        return [_as_text(prompt) for prompt in self._prompts]

    async def get_ready(self) -> None:
        """Warm up the engine; switch to plain prompts if the model refuses chats with a system
        message.
        """
        try:
            await self._ask(WARM_UP, "warm-up")
        except InvalidRequestError:
            self._prompts = tuple(self.questions)

    async def stream_together(self, transcripts: Sequence[Transcript]) -> list[Completion]:
        """Stream all answers at once, each into its transcript; return the completions."""

        async def read(stream: Stream, transcript: Transcript) -> Completion | None:
            async with stream:
                async for piece in stream:
                    transcript.add(piece)
            return stream.completion

        streams = [self._stream(prompt, "watched") for prompt in self._prompts]
        completions = await asyncio.gather(*map(read, streams, transcripts))
        return [completion for completion in completions if completion is not None]

    async def together(self) -> Figures:
        """Generate all answers at once, and measure."""
        steps = self.batcher.statistics().steps
        completions = await asyncio.gather(
            *(self._ask(prompt, "together") for prompt in self._prompts)
        )
        return Figures(tuple(completions), self.batcher.statistics().steps - steps)

    async def in_turn(self) -> Figures:
        """Generate the answers one after another, and measure."""
        steps = self.batcher.statistics().steps
        completions = [
            await self._ask(prompt, f"turn {i}") for i, prompt in enumerate(self._prompts)
        ]
        return Figures(tuple(completions), self.batcher.statistics().steps - steps)

    def _stream(self, prompt: DemoPrompt, namespace: str) -> Stream:
        if isinstance(prompt, str):
            return self.batcher.stream(prompt, self._params, namespace=namespace)
        return self.batcher.stream_chat(prompt, self._params, namespace=namespace)

    async def _ask(self, prompt: DemoPrompt, namespace: str) -> Completion:
        if isinstance(prompt, str):
            return await self.batcher.generate(prompt, self._params, namespace=namespace)
        return await self.batcher.chat(prompt, self._params, namespace=namespace)


def _as_text(prompt: DemoPrompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return " ".join(message["content"] for message in prompt)


def same_answers(*runs: Sequence[Completion]) -> bool:
    """Return True if every caller got the same token ids and text in every run."""
    return all(
        len({(completion.token_ids, completion.text) for completion in of_one_caller}) == 1
        for of_one_caller in zip(*runs, strict=True)
    )
