from __future__ import annotations

import pytest

from pybatcher import Batcher, SamplingParams
from pybatcher.calls.completion import Completion, Timeline, Usage
from pybatcher.cli.demo import Callers, same_answers
from pybatcher.cli.demo_view import Transcript
from pybatcher.models import DEMO_PROMPTS
from pybatcher.testing import fake_batcher


def completion(*token_ids: int, text: str = "x") -> Completion:
    return Completion(
        text=text,
        token_ids=token_ids,
        finish_reason="stop",
        usage=Usage(1, 0, len(token_ids)),
        timeline=Timeline(0.0, 0.0, 1.0, 1.0, (1.0,) * len(token_ids)),
    )


def test_answers_are_the_same_only_if_ids_and_texts_are() -> None:
    one, other_ids = completion(1, 2), completion(1, 2, 3)
    other_text = completion(1, 2, text="y")
    assert same_answers([one, other_ids], [completion(1, 2), other_ids], [one, other_ids])
    assert not same_answers([one, one], [one, one], [one, other_ids])
    assert not same_answers([one], [other_text])


def test_a_caller_without_an_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        same_answers([completion(1), completion(1)], [completion(1)])


async def test_no_run_profits_from_the_one_before() -> None:
    async with Batcher(block_size=16) as batcher:
        callers = Callers(batcher, SamplingParams(max_tokens=1))
        await callers.get_ready()
        runs = [await callers.together(), await callers.in_turn()]
        prompts = [c.usage.prompt_tokens for c in runs[0].completions]
        assert max(prompts) > 16  # or there would be nothing to find
        assert [c.usage.cached_tokens for run in runs for c in run.completions] == [0] * 16


async def test_a_model_without_chats_is_asked_in_plain_prompts() -> None:
    async with fake_batcher() as batcher:
        callers = Callers(batcher, SamplingParams(max_tokens=5))
        await callers.get_ready()
        transcripts = [Transcript(question) for question in callers.questions]
        watched = await callers.stream_together(transcripts)
        together, in_turn = await callers.together(), await callers.in_turn()
    assert callers.questions[1] == " ".join(message["content"] for message in DEMO_PROMPTS[1])
    assert [transcript.tokens for transcript in transcripts] == [5] * len(DEMO_PROMPTS)
    assert [transcript.answer for transcript in transcripts] == [c.text for c in watched]
    assert same_answers(watched, together.completions, in_turn.completions)
    assert (together.forward_passes, in_turn.forward_passes) == (5, 5 * len(DEMO_PROMPTS))
