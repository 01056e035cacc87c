"""Events of a scheduler to the replies of those who wait, and what goes back from there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybatcher import BatcherClosedError, EngineError, SamplingParams
from pybatcher.calls.reply import Reply
from pybatcher.calls.scores import Answer
from pybatcher.calls.telemetry import RequestEvent, Telemetry
from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling import Failed, Generated, Request, SampledToken, Scheduler
from pybatcher.serving.output_processor import OutputProcessor
from pybatcher.serving.request_state import RequestState
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer
from pybatcher.text import Detokenizer

TOKENIZER = byte_tokenizer()


class Case:
    """A scheduler over a fake engine, and the deliveries of its requests."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.clock = clock
        self.engine = FakeEngine()
        self.scheduler = Scheduler(SchedulerConfig(max_draft_tokens=0, max_prefixes=0), self.engine)
        self.telemetry = telemetry = Telemetry(clock)
        self.told: list[RequestEvent] = []
        telemetry.attach(self.told.append)
        self.deliveries = OutputProcessor(self.scheduler, clock)

    def submit(self, request_id: int, **sampling: object) -> Reply:
        reply = Reply(streams=True)
        params = SamplingParams(**{"max_tokens": 4, **sampling})
        request = Request(request_id=request_id, prompt=(65,) * 5, params=params)
        self.take(self.state(request, reply))
        return reply

    def take(self, state: RequestState) -> None:
        self.scheduler.submit(state.request, self.clock())
        self.deliveries.add(state)

    def state(self, request: Request, reply: Reply) -> RequestState:
        return RequestState(request, reply, self.clock(), self.telemetry, TOKENIZER)

    def step(self) -> bool:
        plan = self.scheduler.plan(self.clock())
        self.deliveries.process(self.scheduler.take_events())
        if plan is None:
            return False
        self.deliveries.process(self.scheduler.apply(self.engine.step(plan), self.clock()))
        return True

    def say(self, request_id: int, text: str) -> None:
        """As if one step had drawn all of it."""
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        self.deliveries.process([Generated(request_id, SampledToken(token)) for token in ids])

    def run(self) -> None:
        while self.step():
            pass


def test_each_reply_gets_what_is_said_of_its_request() -> None:
    case = Case()
    replies = [case.submit(i, max_tokens=i) for i in (1, 2, 3)]
    case.run()
    assert [len(reply.result().token_ids) for reply in replies] == [1, 2, 3]
    assert [event.request_id for event in case.told] == [1, 2, 3]
    assert case.scheduler.statistics().completed == 3


def test_cancelled_it_gets_nothing_more() -> None:
    case = Case()
    reply = case.submit(1)
    case.step()
    n_pieces = len(reply.pieces)
    case.deliveries.cancel(1)
    case.say(1, "more")
    case.deliveries.cancel(1)
    assert len(reply.pieces) == n_pieces == 1
    assert [event.finish_reason for event in case.told] == ["cancelled"]
    counts = case.scheduler.statistics()
    assert (counts.cancelled, counts.running) == (1, 0)


def test_a_stop_text_ends_the_request_and_what_was_drawn_after_it_is_dropped() -> None:
    case = Case()
    reply = case.submit(1, stop=("end",), max_tokens=100)
    case.step()
    reply.pieces.clear()
    case.say(1, "The end of it")
    assert [piece.text for piece in reply.pieces][-1] == ""
    assert sum(len(piece.token_ids) for piece in reply.pieces) == len("The end")
    assert reply.result().text.endswith("The ")
    n_told = reply.result().usage.completion_tokens
    assert case.deliveries.generated_tokens == n_told == 1 + len("The end")
    counts = case.scheduler.statistics()
    assert (counts.completed, counts.running) == (1, 0)


def broken(self: object, *arguments: object) -> str:
    raise KeyError("broken")


def test_what_cannot_be_delivered_ends_its_own_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case()
    replies = [case.submit(1), case.submit(2)]
    case.step()
    with monkeypatch.context() as patch:
        patch.setattr(Detokenizer, "push", broken)
        case.say(1, "x")
    case.run()
    with pytest.raises(EngineError, match=r"could not be delivered: KeyError\('broken'\)"):
        replies[0].result()
    assert len(replies[1].result().token_ids) == 4
    assert case.deliveries.generated_tokens == 1 + 4
    counts = case.scheduler.statistics()
    assert (counts.failed, counts.completed) == (1, 1)


def test_a_scored_request_has_an_answer_and_no_tokens() -> None:
    case = Case()
    reply = Reply()
    request = Request(request_id=1, prompt=(65,) * 5, params=SamplingParams(), targets=(66, 67))
    case.take(RequestState(request, reply, case.clock(), case.telemetry))
    case.run()
    answer = reply.result()
    assert isinstance(answer, Answer)
    assert len(answer.logprobs) == 2
    assert [event.finish_reason for event in case.told] == ["scored"]


@pytest.mark.parametrize("is_submitted", [True, False])
def test_if_one_sample_fails_all_of_its_reply_do(is_submitted: bool) -> None:
    case = Case()
    reply, other = Reply(n=3), case.submit(9)
    params = SamplingParams(max_tokens=4)
    for i, request_id in enumerate((1, 2, 3)):
        request = Request(request_id=request_id, prompt=(65,) * 5, params=params)
        state = RequestState(
            request, reply, 0.0, case.telemetry, TOKENIZER, index=i, siblings=range(1, 4)
        )
        if not is_submitted and i == 1:
            case.deliveries.refuse(state, TypeError("odd"))
            break
        case.take(state)
    if is_submitted:
        case.step()
        case.scheduler.fail(2)
        case.deliveries.process([Failed(2, EngineError("odd"))])
    with pytest.raises(EngineError, match="odd"):
        reply.result()
    case.run()
    assert case.deliveries.n_open == 0
    assert len(other.result().token_ids) == 4
    counts = case.scheduler.statistics()
    assert (counts.running, counts.queued, counts.completed) == (0, 0, 1)


@pytest.mark.parametrize("is_known", [True, False], ids=["scheduled", "lost by the scheduler"])
def test_whoever_is_left_fails_each_with_an_error_of_its_own(is_known: bool) -> None:
    case = Case()
    replies = [case.submit(1), case.submit(2)]
    if not is_known:
        case.scheduler.cancel(1)
    case.deliveries.fail_rest(BatcherClosedError("closed"))
    errors = [raised_by(reply.result) for reply in replies]
    assert [type(error) for error in errors] == [BatcherClosedError] * 2
    assert errors[0] is not errors[1]
    case.deliveries.fail_rest(BatcherClosedError("again"))
    assert str(raised_by(replies[0].result)) == "closed"
    assert len(case.told) == 2


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")
