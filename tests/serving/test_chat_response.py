from __future__ import annotations

import pytest
from response_texts import CASES, Case

from pybatcher.serving.chat_response import ChatResponse
from pybatcher.text.output import FORMATS, ResponseParser, parse_response


def response_of(case: Case, *, is_parallel: bool = True) -> ChatResponse:
    parser = ResponseParser(FORMATS[case.format], in_reasoning=case.in_reasoning)
    return ChatResponse(parser, frozenset(), is_parallel=is_parallel)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format} {case.text[:20]!r}")
def test_parts_add_up_to_the_whole_response(case: Case) -> None:
    """In pieces of one character, as a stream has them, and in one piece."""
    whole = parse_response(case.text, FORMATS[case.format], in_reasoning=case.in_reasoning)
    for pieces in ([case.text], list(case.text)):
        response = response_of(case)
        parts = [response.feed(piece, is_last=False) for piece in pieces]
        parts.append(response.feed("", is_last=True))
        assert "".join(part.text for part in parts) == whole.content
        assert "".join(part.reasoning for part in parts) == whole.reasoning
        assert response.tool_calls == whole.tool_calls
        assert response.notes == whole.notes
        deltas = [delta for part in parts for delta in part.tool_calls]
        assert tuple(delta.call for delta in deltas if delta.call is not None) == whole.tool_calls
        assert not response.is_over


def test_one_call_ends_a_response_that_may_have_no_more() -> None:
    case = next(case for case in CASES if len(case.calls) > 1)
    response = response_of(case, is_parallel=False)
    parts = [response.feed(letter, is_last=False) for letter in case.text]
    assert response.is_over
    assert len(response.tool_calls) == 1
    assert parts[-1] == ("", "", ())
