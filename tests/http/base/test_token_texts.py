from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_tokenizers import build
from small_sidecar import sidecar

from pybatcher import Client
from pybatcher.http.base.token_texts import TokenTexts
from pybatcher.testing import fake_batcher
from pybatcher.testing.fake_engine import FakeEngine
from pybatcher.text import Tokenizer


async def test_each_text_is_fetched_once() -> None:
    async with fake_batcher() as batcher:
        texts, asked = TokenTexts(batcher), []
        detokenize = batcher.detokenize

        async def counted(ids: Any) -> Any:
            asked.extend(map(tuple, ids) if isinstance(ids[0], list) else [tuple(ids)])
            return await detokenize(ids)

        batcher.detokenize = counted  # type: ignore[method-assign]
        made = await batcher.generate("Hi", max_tokens=3, logprobs=2, n=2, seed=1, temperature=1.0)
        await texts.learn_of(made)
        await texts.learn_of(made)
        assert len(set(asked)) == len(asked)
        for choice in made.choices:
            for one in choice.logprobs or ():
                assert texts[one.token_id] == await detokenize([one.token_id])
                assert all(texts[token] is not None for token, _ in one.top)


async def test_the_texts_of_a_response_take_one_frame(tmp_path: Path) -> None:
    async with (
        fake_batcher() as batcher,
        sidecar(tmp_path / "socket", batcher) as one,
        Client(tmp_path / "socket") as client,
    ):
        made = await client.generate("Hi", max_tokens=30, logprobs=5, seed=1, temperature=1.0)
        texts = TokenTexts(client)
        await texts.learn([72])  # with the two questions that a process asks once
        n_before = one.n_questions
        await texts.learn_of(made)
        assert one.n_questions == n_before + 1
        for logprob in made.logprobs or ():
            for token in (logprob.token_id, *(token for token, _ in logprob.top)):
                assert texts[token] == await client.detokenize([token])


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
async def test_a_token_keeps_the_space_that_it_loses_alone(kind: str) -> None:
    backend = build(kind)
    tokenizer = Tokenizer(backend)
    ids = [backend.token_to_id(token) for token in ("▁the", "▁fox", "s")]
    assert tokenizer.decode(ids[:1]) == "the"
    async with fake_batcher(FakeEngine(vocab_size=400), tokenizer=tokenizer) as batcher:
        texts = TokenTexts(batcher)
        await texts.learn(ids)
        assert [texts[one] for one in ids] == [" the", " fox", "s"]
