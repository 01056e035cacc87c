"""From tokens to text: what is shown when, and how an output ends."""

from __future__ import annotations

import pytest

from pybatcher import Completion, DeadlineExceededError, EngineFailedError, SamplingParams
from pybatcher.calls.reply import Reply
from pybatcher.calls.telemetry import RequestEvent, Telemetry
from pybatcher.scheduling import Request, SampledToken
from pybatcher.serving.request_state import RequestState
from pybatcher.testing import byte_tokenizer
from pybatcher.testing.byte_tokenizer import EOS_TOKEN_ID

TOKENIZER = byte_tokenizer()


class Case:
    """A request that gets one token a second."""

    def __init__(self, **sampling: object) -> None:
        request = Request(
            request_id=1,
            prompt=(65,) * 7,
            trace_headers={"traceparent": "x"},
            params=SamplingParams(**sampling),
            end_token_ids=frozenset({EOS_TOKEN_ID}),
            namespace="tenant",
            priority=-3,
        )
        self.reply = Reply(streams=True)
        self.now = 11.0
        self.events: list[RequestEvent] = []
        telemetry = Telemetry(lambda: self.now)
        telemetry.attach(self.events.append)
        self.state = RequestState(request, self.reply, 10.0, telemetry, TOKENIZER)
        self.state.admitted(3, 11.0)

    def token(self, token_id: int, finish_reason: object = None) -> bool:
        self.now += 1.0
        return self.state.token(SampledToken(token_id), finish_reason, self.now)

    def text(self, text: str, finish_reason: object = None) -> list[bool]:
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        ended = [self.token(token_id) for token_id in ids[:-1]]
        return [*ended, self.token(ids[-1], finish_reason)]

    @property
    def shown(self) -> list[str]:
        return [piece.text for piece in self.reply.pieces]

    @property
    def completion(self) -> Completion:
        return self.reply.result()


def test_each_token_is_a_piece() -> None:
    case = Case()
    assert case.text("abc", "length") == [False, False, True]
    assert case.shown == ["a", "b", "c"]
    assert [piece.finish_reason for piece in case.reply.pieces] == [None, None, "length"]
    assert case.completion.text == "abc"
    assert case.completion.usage.prompt_tokens == 7
    assert case.completion.usage.cached_tokens == 3
    assert case.completion.timeline.admitted == 11.0
    assert case.completion.timeline.token_times == (12.0, 13.0, 14.0)


def test_a_cut_character_is_held_back_until_it_is_whole_or_all_is_over() -> None:
    case = Case()
    case.text("é")
    assert case.shown == ["", "é"]
    first_byte, _ = TOKENIZER.encode("é", add_special_tokens=False)
    assert case.token(first_byte, "length")
    assert case.shown[-1] == "\ufffd"
    assert case.completion.text == "é\ufffd"


def test_what_may_become_a_stop_text_is_held_back() -> None:
    case = Case(stop="END")
    case.text("an EN")
    assert "".join(case.shown) == "an "
    case.text("O")
    assert "".join(case.shown) == "an ENO"
    assert case.text("ENDx")[2] is True
    assert case.completion.text == "an ENO"
    assert case.completion.finish_reason == "stop"


@pytest.mark.parametrize(
    ("stop", "shown"),
    [("<eos>", "ab"), ("<eos>c", "ab"), ("b<eos>c", "a"), ("<eos><eos>", "ab"), ("c", "ab")],
)
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_a_stop_text_contains_the_text_of_a_special_token(
    stop: str, shown: str, skip_special_tokens: bool
) -> None:
    case = Case(stop=stop, skip_special_tokens=skip_special_tokens, ignore_eos=True)
    case.text("ab")
    ended = case.token(EOS_TOKEN_ID)
    assert ended is (stop == "<eos>")
    if stop == "<eos><eos>":
        assert case.token(EOS_TOKEN_ID)
    elif not ended:
        assert case.text("c") == [True]
    is_seen = stop == "c" and not skip_special_tokens
    assert case.completion.text == shown + "<eos>" * is_seen
    assert case.completion.finish_reason == "stop"


def test_a_special_token_in_no_stop_text_leaves_stop_texts_around_it_whole() -> None:
    case = Case(stop="abc")
    case.text("ab")
    case.token(EOS_TOKEN_ID)
    assert case.text("c") == [True]
    assert case.completion.text == ""


def test_an_end_token_completes_a_stop_text() -> None:
    case = Case(stop="b<eos>")
    case.text("ab")
    assert case.token(EOS_TOKEN_ID, "stop")
    assert case.completion.text == "a"


def test_what_was_held_back_is_shown_when_no_stop_text_came_of_it() -> None:
    case = Case(stop="END")
    case.text("an EN", "length")
    assert case.completion.text == "an EN"
    assert case.completion.finish_reason == "length"


def test_a_stop_text_in_the_last_token_is_a_stop() -> None:
    case = Case(stop="END")
    case.text("an END", "length")
    assert case.completion.text == "an "
    assert case.completion.finish_reason == "stop"
    assert case.reply.pieces[-1].finish_reason == "stop"


def test_a_stop_text_out_of_bytes_that_are_no_character() -> None:
    case = Case(stop="\ufffd")
    first_byte, _ = TOKENIZER.encode("é", add_special_tokens=False)
    assert case.token(first_byte, "length")
    assert case.completion.text == ""
    assert case.completion.finish_reason == "stop"


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_the_end_token_has_no_text(skip_special_tokens: bool) -> None:
    case = Case(skip_special_tokens=skip_special_tokens)
    case.token(EOS_TOKEN_ID)
    case.text("a")
    case.token(EOS_TOKEN_ID, "stop")
    assert case.completion.text == ("a" if skip_special_tokens else "<eos>a")
    assert len(case.completion.token_ids) == 3


def test_expired_with_and_without_tokens() -> None:
    case = Case(stop="END")
    case.text("an EN")
    case.state.expire(20.0)
    assert case.completion.text == "an EN"
    assert case.completion.finish_reason == "deadline"
    assert case.completion.timeline.finished == 20.0
    assert case.reply.pieces[-1].text == "EN"
    empty = Case()
    empty.state.expire(20.0)
    with pytest.raises(DeadlineExceededError, match=r"within 10\.000 s"):
        empty.reply.result()


def test_failed() -> None:
    case = Case()
    case.text("a")
    case.state.fail(EngineFailedError("broken"))
    assert case.shown == ["a"]
    with pytest.raises(EngineFailedError, match="broken"):
        case.reply.result()


def test_the_event_of_a_completion() -> None:
    case = Case()
    case.text("abc", "length")
    assert case.events == [
        RequestEvent(
            when=14.0,
            request_id=1,
            namespace="tenant",
            priority=-3,
            finish_reason="length",
            prompt_tokens=7,
            cached_tokens=3,
            generated_tokens=3,
            queued=1.0,
            ttft=2.0,
            itl=(1.0, 1.0),
            total=4.0,
            preemptions=0,
            recomputed_tokens=0,
            kind="generate",
            trace_headers={"traceparent": "x"},
            max_tokens=case.state.request.params.max_tokens,
            temperature=0.0,
            top_p=1.0,
        )
    ]


def test_preemptions_and_what_they_cost_are_counted() -> None:
    case = Case()
    case.text("a")
    case.state.preempted()
    case.state.resumed(5)
    case.state.preempted()
    case.state.resumed(6)
    case.text("b", "length")
    (event,), timeline = case.events, case.completion.timeline
    assert (timeline.preemptions, timeline.recomputed_tokens) == (2, 11)
    assert (event.preemptions, event.recomputed_tokens) == (2, 11)


def test_the_event_of_one_that_fails_expires_or_is_cancelled() -> None:
    failed, late, waiting, cancelled = Case(), Case(), Case(), Case()
    failed.text("ab")
    failed.state.fail(EngineFailedError("broken"))
    late.text("a")
    late.state.expire(20.0)
    waiting.state.expire(20.0)
    cancelled.text("abc")
    cancelled.state.cancelled()
    events = [case.events for case in (failed, late, waiting, cancelled)]
    assert [len(of_one) for of_one in events] == [1, 1, 1, 1]
    assert [(e.finish_reason, e.generated_tokens, e.ttft, e.total) for (e,) in events] == [
        ("EngineFailedError", 2, 2.0, 3.0),
        ("deadline", 1, 2.0, 10.0),
        ("DeadlineExceededError", 0, None, 1.0),
        ("cancelled", 3, 2.0, 4.0),
    ]


def test_a_second_end_has_no_event() -> None:
    case = Case()
    case.text("a", "length")
    case.state.fail(EngineFailedError("its KV cannot be freed"))
    assert [event.finish_reason for event in case.events] == ["length"]
