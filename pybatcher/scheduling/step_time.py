"""`StepTime`: how long a step takes, learnt from the steps there were."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepLoad", "StepTime"]

_N = 5
_FORGETTING = 0.98  # what a step still counts when the next has been seen
_FADED = 1e-9  # of a kind of row that has not been seen for so long the last answer stands
_SWEEPS = 24
_GROWTH = 2  # how much larger than what was seen a prefill may be foretold
_FIRST_CHUNK = 32  # rows, before any was seen
_LEARNING = 0.1
_CAUTION = 3.0  # times the average excess: what few steps go beyond
_HICCUP = 4.0  # a step that takes so many times what is expected says nothing


@dataclass(slots=True)
class StepLoad:
    """What a step has to do. Contexts are sums over rows of the tokens that each attends to."""

    decode_rows: int = 0
    prefill_rows: int = 0
    decode_context: int = 0
    prefill_context: float = 0.0

    def add_decode(self, length: int, rows: int = 1) -> None:
        """Rows of a generating sequence of so many tokens."""
        self.decode_rows += rows
        self.decode_context += rows * length

    def add_prefill(self, length: int, rows: int) -> None:
        """A chunk of so many rows after so many tokens."""
        self.prefill_rows += rows
        self.prefill_context += rows * (length + (rows + 1) / 2)


class StepTime:
    """Fits seconds = step + a decode rows + b prefill rows + c decode context + d prefill context.

    Least squares of relative errors that forget, under the condition that no coefficient is
    negative: without it the fit would trade rows of one kind for those of another. Solved by
    coordinate descent, from the last solution on.
    """

    def __init__(self) -> None:
        self._matrix = [[0.0] * _N for _ in range(_N)]
        self._vector = [0.0] * _N
        self._fit = [0.0] * _N
        self._stale = False
        self._bias = 1.0  # of steps with rows of both kinds: how long they take, over the fit
        self._doubt = 0.0  # and by what share longer than even that, on the average
        self._most_rows = 0

    @property
    def most_prefill_rows(self) -> int:
        """How many rows of prefill may be foretold: not far more than were ever seen."""
        return max(_FIRST_CHUNK, _GROWTH * self._most_rows)

    def seconds(self, load: StepLoad) -> float:
        """What the step would take; 0.0 while nothing is known."""
        fit = self._solved()
        return sum(value * x for value, x in zip(fit, _features(load), strict=True))

    def prefill_rows_within(self, seconds: float, load: StepLoad, length: int, wanted: int) -> int:
        """How many rows of a chunk after `length` tokens keep a step with `load` within `seconds`.

        At most `wanted`; 0 where the step takes as long without them.
        """
        fit = self._solved()
        left = seconds / (self._bias * (1.0 + _CAUTION * self._doubt)) - self.seconds(load)
        row = fit[2] + fit[4] * (length + 0.5)  # and fit[4] / 2 more for each further one
        if left <= 0.0:
            return 0
        rows = _largest_root(fit[4] / 2, row, left, wanted)
        return min(wanted, rows, max(0, self.most_prefill_rows - load.prefill_rows))

    def note(self, load: StepLoad, seconds: float) -> None:
        """A step took so long."""
        expected = self.seconds(load)
        self._most_rows = max(self._most_rows, load.prefill_rows)
        if expected > 0.0:
            if load.prefill_rows and load.decode_rows:
                ratio = min(seconds / expected, _HICCUP)
                self._bias += _LEARNING * (ratio - self._bias)
                self._doubt += _LEARNING * (max(ratio / self._bias - 1.0, 0.0) - self._doubt)
            seconds = min(seconds, expected * _HICCUP)
        if seconds <= 0.0:
            return
        features = [x / seconds for x in _features(load)]
        for i, x in enumerate(features):
            row = self._matrix[i]
            for j, y in enumerate(features):
                row[j] = row[j] * _FORGETTING + x * y
            self._vector[i] = self._vector[i] * _FORGETTING + x
        self._stale = True

    def _solved(self) -> list[float]:
        if self._stale:
            fit = self._fit
            for _ in range(_SWEEPS):
                for i in range(_N):
                    row = self._matrix[i]
                    if row[i] > _FADED:
                        rest = self._vector[i] - sum(row[j] * fit[j] for j in range(_N) if j != i)
                        fit[i] = max(0.0, rest / row[i])
            self._stale = False
        return self._fit


def _features(load: StepLoad) -> tuple[float, float, float, float, float]:
    return (
        1.0,
        float(load.decode_rows),
        float(load.prefill_rows),
        float(load.decode_context),
        load.prefill_context,
    )


def _largest_root(square: float, linear: float, left: float, wanted: int) -> int:
    """The most rows with square * rows**2 + linear * rows <= left."""
    if square * wanted * wanted + linear * wanted <= left:
        return wanted
    if square <= 0.0:
        return int(left / linear)
    root = (linear * linear + 4.0 * square * left) ** 0.5
    return int((root - linear) / (2.0 * square))
