"""The text of an output from any of its tokens on: what is told, what is held back, how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_tokenizers import KINDS, build

from pybatcher import SamplingParams
from pybatcher.calls.completion import FinishReason
from pybatcher.calls.reply import Reply
from pybatcher.calls.telemetry import Telemetry
from pybatcher.scheduling import Request, SampledToken
from pybatcher.serving.request_state import RequestState
from pybatcher.testing import byte_tokenizer
from pybatcher.testing.byte_tokenizer import EOS_TOKEN_ID
from pybatcher.text import Tokenizer

TOKENIZER = byte_tokenizer()
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("once upon a time", {}),
    "characters of many tokens": ("caf\u00e9 \u20ac \U0001f600!", {}),
    "a stop text at the end": ("one two END", {"stop": "END"}),
    "nearly a stop text, again and again": ("aaab aab ab END aaa", {"stop": ("aaaa", "ENDE")}),
    "a stop text of cut characters": ("x \u20ac\u20ac\u20ac", {"stop": "\u20ac\u20ac\u20ac"}),
    "a stop text in what is left at the end": ("ab\u20ac", {"stop": "\ufffd", "max_tokens": 4}),
    "the last of its tokens": ("nearly EN", {"stop": "END", "max_tokens": 9}),
    "special tokens shown": ("a<eos>b", {"skip_special_tokens": False}),
}


class OutputText:
    """The text of one output, as its request state delivers it, token by token."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.reply = Reply(streams=True)
        self.state = RequestState(request, self.reply, 0.0, Telemetry(lambda: 0.0), tokenizer)

    @property
    def finish_reason(self) -> str | None:
        return self.state.finish_reason

    def push(self, token_id: int, finish_reason: FinishReason | None) -> str:
        self.state.token(SampledToken(token_id), finish_reason, 0.0)
        return self.reply.pieces[-1].text

    def flush(self) -> str:
        """What a deadline would tell."""
        if not (self.state.request.output or self.reply.pieces):
            return ""
        self.state.expire(0.0)
        return self.reply.pieces[-1].text


async def text_after_output(request: Request, tokenizer: Tokenizer, max_output: int) -> OutputText:
    text = OutputText(request, tokenizer)
    await text.state.replay_output(max_output)
    return text


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def request(prompt: str = "p", output: tuple[int, ...] = (), **sampling: object) -> Request:
    return Request(
        request_id=1,
        prompt=tuple(ids(prompt)),
        params=SamplingParams(**sampling),
        end_token_ids=frozenset({EOS_TOKEN_ID}),
        output=output,
    )


def told(text: OutputText, asked: Request, tokens: list[int]) -> list[tuple[str, str | None]]:
    """What each further token tells, up to the end of the output."""
    pieces = []
    for n_output, token in enumerate(tokens, start=1 + len(asked.output)):
        reason = asked.finish_reason(token, n_output, asked.max_output(1000))
        pieces.append((text.push(token, reason), text.finish_reason))
        if text.finish_reason is not None:
            break
    return pieces


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("case", CASES)
async def test_from_every_token_on(case: str, ends: bool) -> None:
    """What the first k tokens told and what comes after it are what there is undisturbed."""
    content, sampling = CASES[case]
    tokens = [*ids(content), EOS_TOKEN_ID] if ends else ids(content)
    asked = request(**sampling)
    pieces = told(OutputText(asked, TOKENIZER), asked, tokens)
    for k in range(1, len(pieces) + 1):
        asked = request(output=tuple(tokens[:k]), **sampling)
        text = await text_after_output(asked, TOKENIZER, asked.max_output(1000))
        assert text.finish_reason == pieces[k - 1][1]
        if text.finish_reason is None:
            assert told(text, asked, tokens[k:]) == pieces[k:]
        if k == len(pieces) and text.finish_reason is None:
            undisturbed = OutputText(request(**sampling), TOKENIZER)
            told(undisturbed, request(**sampling), tokens)
            assert text.flush() == undisturbed.flush()


def test_only_where_nothing_comes_before_is_a_space_dropped() -> None:
    """As some tokenizers do at the start of a text."""
    tokenizer, the = Tokenizer(build("metaspace")), 259
    assert tokenizer.token(the) == "▁the"
    for prompt, text in (((1,), "the"), ((1, the), " the")):
        asked = Request(request_id=1, prompt=prompt)
        assert told(OutputText(asked, tokenizer), asked, [the]) == [(text, None)]


async def test_what_comes_after_the_end_is_not_looked_at() -> None:
    for output, reason in (((1, EOS_TOKEN_ID, 2), "stop"), ((1, 2, 3), "length")):
        asked = request(output=output, max_tokens=2)
        text = await text_after_output(asked, TOKENIZER, 2)
        assert text.finish_reason == reason


def test_an_end_token_has_no_text() -> None:
    asked = request(skip_special_tokens=False)
    text = OutputText(asked, TOKENIZER)
    assert told(text, asked, [*ids("a"), EOS_TOKEN_ID]) == [("a", None), ("", "stop")]


@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(-1, 420), min_size=2, max_size=20),
    st.booleans(),
    st.sampled_from([(), ("  ",), ("\ufffd", "s")]),
)
def test_with_tokenizers_of_every_kind(
    kind: str, tokens: list[int], has_text: bool, stop: tuple[str, ...]
) -> None:
    """Whether the prompt has a text or not: only at its beginning some drop a space."""
    tokenizer = Tokenizer(build(kind))
    asked = Request(
        request_id=1, prompt=(1, 70) if has_text else (1,), params=SamplingParams(stop=stop)
    )
    pieces = told(undisturbed := OutputText(asked, tokenizer), asked, tokens)
    for k in range(1, len(pieces)):
        going_on = replace(asked, output=tuple(tokens[:k]))
        text = asyncio.run(text_after_output(going_on, tokenizer, 100))
        assert told(text, going_on, tokens[k:]) == pieces[k:]
        if text.finish_reason is None:
            assert text.flush() == undisturbed.flush()
            undisturbed = OutputText(asked, tokenizer)
            told(undisturbed, asked, tokens)


async def test_the_loop_goes_on_while_a_long_output_is_looked_at() -> None:
    asked = request(output=(5,) * 5000, max_tokens=10_000)
    looking = asyncio.create_task(text_after_output(asked, TOKENIZER, 10_000))
    n_turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        n_turns += 1
    assert n_turns > 5000 / 200
