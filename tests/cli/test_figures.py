from __future__ import annotations

from pybatcher.calls.completion import Completion, Timeline, Usage
from pybatcher.cli.figures import Figures


def completion(*token_times: float, submitted: float = 10.0) -> Completion:
    return Completion(
        text="x",
        token_ids=tuple(range(len(token_times))),
        finish_reason="stop",
        usage=Usage(1, 0, len(token_times)),
        timeline=Timeline(submitted, submitted, token_times[0], token_times[-1], token_times),
    )


def test_times_count_from_when_the_first_caller_asked() -> None:
    figures = Figures((completion(11.0, 12.0), completion(12.5, 13.0, 14.0, submitted=12.0)), 5)
    assert figures.begin == 10.0
    assert figures.ttft == [1.0, 2.5]
    assert figures.itl == [1.0, 0.5, 1.0]
    assert figures.seconds == 4.0
    assert figures.tokens == 5
    assert figures.tokens_per_second == 1.25
