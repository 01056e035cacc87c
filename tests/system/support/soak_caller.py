"""`Caller`: one request of the soak, and what its caller does to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from alone import tokens_alone

from pybatcher import Batcher, Completion, DeadlineExceededError, SamplingParams
from pybatcher.scheduling import Request
from pybatcher.serving.engine_executor import StepEngine
from pybatcher.text import Tokenizer


class Caller:
    """One request, and what its caller does to it.

    What came is compared with what the request gives alone by `check`, once all have ended: so
    no more is computed alone than was given.
    """

    def __init__(
        self, number: int, tokenizer: Tokenizer, engine: StepEngine | None, alphabet: Sequence[str]
    ) -> None:
        """engine: what to ask for the tokens it has to get; None: a fake one."""
        self._random = rng = random.Random(number)
        shared = alphabet[0] * rng.choice([0, 0, 40])
        n_words = rng.randint(1, 60 if number % 4 == 0 else 15)
        text = shared + "".join(rng.choices(alphabet, k=n_words))
        self._tokenizer = tokenizer
        self._prompt = tuple(self._tokenizer.encode(text))
        max_tokens = rng.randint(1, 60)
        self._params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, max_tokens // 2]),
            temperature=rng.choice([0.0, 1.0]),
            seed=number,
            stop_token_ids=tuple(range(0, 250, 31)) if rng.random() < 0.7 else (),
            skip_special_tokens=rng.random() < 0.5,
        )
        self._engine = engine
        self._came: list[int] = []
        self._whole: list[int] | None = None  # what it gives alone, to its end, where that is known
        self._completion: Completion | None = None
        self._stop = self._choose_stop() if rng.random() < 0.3 else None
        self._does = rng.choice(["generate", "cancel", "stream", "stop early", "drop", "time out"])
        self._delay = rng.random() * 0.5

    async def ask(self, batcher: Batcher) -> str:
        """Do it, say how it ended."""
        await asyncio.sleep(self._delay)
        options = {} if self._stop is None else {"stop": self._stop}
        if self._does in ("generate", "cancel", "time out"):
            return await self._generate(batcher, options)
        return await self._stream(batcher, options)

    async def _generate(self, batcher: Batcher, options: dict[str, str]) -> str:
        timeout = self._random.random() * 0.05 if self._does == "time out" else None
        task = asyncio.create_task(
            batcher.generate(self._prompt, self._params, timeout=timeout, **options)
        )
        if self._does == "cancel":
            await asyncio.sleep(self._random.random() * 0.05)
            task.cancel()
        try:
            completion = await task
        except asyncio.CancelledError:
            return "cancelled"
        except DeadlineExceededError:
            return "expired"
        self._completion = completion
        return completion.finish_reason

    async def _stream(self, batcher: Batcher, options: dict[str, str]) -> str:
        n_wanted = self._random.randint(0, 20) if self._does != "stream" else 10**9
        stream = batcher.stream(self._prompt, self._params, **options)
        token_ids, text = self._came, ""
        async for piece in stream:
            token_ids += piece.token_ids
            text += piece.text
            if len(token_ids) >= n_wanted:
                break
        if stream.completion is None:
            if self._does == "stop early":
                await stream.aclose()
            return "left"
        self._completion = stream.completion
        if self._does == "stream":
            assert text == stream.completion.text
            assert tuple(token_ids) == stream.completion.token_ids
        return stream.completion.finish_reason

    def check(self) -> None:
        """Compare everything that came with what the request gives alone."""
        completion = self._completion
        ids = self._came if completion is None else list(completion.token_ids)
        assert self._came == ids[: len(self._came)]
        whole = self._whole
        assert ids == (self._tokens_alone(len(ids)) if whole is None else whole[: len(ids)])
        if completion is None:
            return
        if completion.finish_reason == "length":
            assert len(ids) == self._params.max_tokens
        elif completion.finish_reason == "stop":
            ended = ids[-1] in self._ends()
            assert ended or (self._stop is not None and self._stop in self._text(ids))
        if self._stop is not None:
            assert self._stop not in completion.text
            assert completion.text == self._text(ids).partition(self._stop)[0]
        else:
            assert completion.text == self._text(ids)

    def _tokens_alone(self, n_wanted: int | None = None) -> list[int]:
        request = Request(
            request_id=0,
            prompt=self._prompt,
            params=self._params,
            seed=self._params.seed or 0,
            end_token_ids=self._ends(),
        )
        return tokens_alone(request, 2048, self._engine, n_wanted=n_wanted)

    def _ends(self) -> frozenset[int]:
        return self._tokenizer.eos_token_ids.union(self._params.stop_token_ids)

    def _text(self, ids: list[int]) -> str:
        shown = ids[:-1] if ids and ids[-1] in self._ends() else ids
        skip = self._params.skip_special_tokens
        return self._tokenizer.decode(shown, skip_special_tokens=skip)

    def _choose_stop(self) -> str | None:
        self._whole = self._tokens_alone()
        text = self._text(self._whole)
        start = self._random.randrange(len(text) + 1)
        return text[start : start + self._random.randint(1, 4)] or None
