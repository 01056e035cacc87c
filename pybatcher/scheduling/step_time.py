"""`StepTime` and `StepCost`: estimates of the duration of a step, from measured steps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepCost", "StepLoad", "StepTime"]

_N = 5  # coefficients
_DECAY = 0.98  # weight that a step keeps when the next is measured
_FADED = 1e-9  # least weight at which a coefficient is fitted; below it, the last value is kept
_SWEEPS = 24  # of coordinate descent
_GROWTH = 2  # times the most prefill rows measured: the limit of estimates
_FIRST_CHUNK = 32  # prefill rows that are estimated before the first measurement
_LEARNING_RATE = 0.1
_CAUTION = 3.0  # times the average excess: few steps take longer
_OUTLIER = 4.0  # a step counts as at most this many times its estimate

_ASSUMED_ROWS = (
    8.0  # rows that cost as much as an empty step, before steps of several sizes are measured
)
_PRIOR_WEIGHT = 0.01  # weight of the assumption beside one measurement
_LEAST_ROWS, _MOST_ROWS = 1.0, 64.0  # that cost as much as an empty step


@dataclass(slots=True)
class StepLoad:
    """The work of one step: rows, and contexts, the sums over rows of the tokens attended to."""

    decode_rows: int = 0
    prefill_rows: int = 0
    decode_context: int = 0
    prefill_context: float = 0.0

    def add_decode(self, length: int, rows: int = 1) -> None:
        """Add rows of a generating sequence with `length` tokens."""
        self.decode_rows += rows
        self.decode_context += rows * length

    def add_prefill(self, length: int, rows: int) -> None:
        """Add a chunk of `rows` rows that comes after `length` computed tokens."""
        self.prefill_rows += rows
        self.prefill_context += rows * (length + (rows + 1) / 2)


class StepTime:
    """Fits seconds = step + a decode rows + b prefill rows + c decode context + d prefill context.

    Least squares of relative errors with exponential decay, under the condition that no
    coefficient is negative: otherwise the fit would trade rows of one kind for rows of the other.
    Solved by coordinate descent that starts from the last solution.
    """

    def __init__(self) -> None:
        self._matrix = [[0.0] * _N for _ in range(_N)]
        self._vector = [0.0] * _N
        self._fit = [0.0] * _N
        self._stale = False
        self._bias = 1.0  # seconds over fit, of steps with rows of both kinds
        self._excess = 0.0  # the average share by which such steps take longer than bias * fit
        self._most_rows = 0

    @property
    def most_prefill_rows(self) -> int:
        """Most prefill rows of an estimate: `_GROWTH` times the most that were measured."""
        return max(_FIRST_CHUNK, _GROWTH * self._most_rows)

    def seconds(self, load: StepLoad) -> float:
        """Return the estimate for a step with this load; 0.0 before the first measurement."""
        fit = self._solved()
        return sum(value * x for value, x in zip(fit, _features(load), strict=True))

    def prefill_rows_within(self, seconds: float, load: StepLoad, length: int, wanted: int) -> int:
        """Return how many rows of a chunk keep a step with `load` within `seconds`.

        length: tokens before the chunk. Returns at most `wanted` rows, and 0 if the step takes
        longer even without any.
        """
        fit = self._solved()
        left = seconds / (self._bias * (1.0 + _CAUTION * self._excess)) - self.seconds(load)
        row = fit[2] + fit[4] * (length + 0.5)  # each further row costs fit[4] / 2 more
        if left <= 0.0:
            return 0
        rows = _largest_root(fit[4] / 2, row, left, wanted)
        return min(wanted, rows, max(0, self.most_prefill_rows - load.prefill_rows))

    def note(self, load: StepLoad, seconds: float) -> None:
        """Add the measurement of one step to the fit."""
        expected = self.seconds(load)
        self._most_rows = max(self._most_rows, load.prefill_rows)
        if expected > 0.0:
            if load.prefill_rows and load.decode_rows:
                ratio = min(seconds / expected, _OUTLIER)
                self._bias += _LEARNING_RATE * (ratio - self._bias)
                excess = max(ratio / self._bias - 1.0, 0.0)
                self._excess += _LEARNING_RATE * (excess - self._excess)
            seconds = min(seconds, expected * _OUTLIER)
        if seconds <= 0.0:
            return
        features = [x / seconds for x in _features(load)]
        for i, x in enumerate(features):
            row = self._matrix[i]
            for j, y in enumerate(features):
                row[j] = row[j] * _DECAY + x * y
            self._vector[i] = self._vector[i] * _DECAY + x
        self._stale = True

    def _solved(self) -> list[float]:
        if self._stale:
            self._fit = _descend(self._matrix, self._vector, self._fit)
            self._stale = False
        return self._fit


class StepCost:
    """Fits seconds = empty step + rows * row, by least squares with exponential decay.

    An empty step takes time too: the weights are read once for any number of rows. The number of
    rows that cost as much depends on model, dtype and machine: from three for a model that fits
    into the CPU's cache to thirty and more.
    """

    def __init__(self) -> None:
        self._steps = self._rows = self._seconds = 0.0  # decayed sums over steps
        self._rows_squared = self._rows_seconds = 0.0
        self._row = self._empty_step = 0.0  # the fit, in seconds

    @property
    def rows_of_an_empty_step(self) -> float:
        """The number of rows that cost as much as a step without rows."""
        if not self._steps:
            return _ASSUMED_ROWS
        if self._row <= 0.0 or self._empty_step > self._row * _MOST_ROWS:
            return _MOST_ROWS
        return max(_LEAST_ROWS, self._empty_step / self._row)

    @property
    def row(self) -> float:
        """Seconds that a row costs; 0.0 before the first measurement."""
        return self._seconds / (self._rows + self._steps * self.rows_of_an_empty_step or 1.0)

    def note(self, rows: int, seconds: float) -> None:
        """Add the measurement of one step with `rows` rows to the fit."""
        expected = self._empty_step + self._row * rows
        if expected > 0.0:  # an outlier counts as at most twice or half the estimate
            seconds = min(max(seconds, expected / 2), expected * 2)
        # Each measurement adds an assumed one with more rows and a small weight: if all steps have
        # the same number of rows, only the assumption determines the slope.
        more = rows + _ASSUMED_ROWS
        more_seconds = seconds * (more + _ASSUMED_ROWS) / (rows + _ASSUMED_ROWS)
        weight = _PRIOR_WEIGHT
        self._steps = self._steps * _DECAY + 1.0 + weight
        self._rows = self._rows * _DECAY + rows + weight * more
        self._seconds = self._seconds * _DECAY + seconds + weight * more_seconds
        self._rows_squared = self._rows_squared * _DECAY + rows * rows + weight * more * more
        self._rows_seconds = (
            self._rows_seconds * _DECAY + rows * seconds + weight * more * more_seconds
        )
        covariance = self._steps * self._rows_seconds - self._rows * self._seconds
        variance = self._steps * self._rows_squared - self._rows * self._rows
        self._row = covariance / variance
        self._empty_step = (self._seconds - self._row * self._rows) / self._steps


def _descend(matrix: list[list[float]], vector: list[float], fit: list[float]) -> list[float]:
    """Return the solution after `_SWEEPS` sweeps of coordinate descent from `fit`.

    The loop over coefficients is unrolled, because a loop takes four times as long and this runs
    in every step.
    """
    (aa, ab, ac, ad, ae), (_, bb, bc, bd, be), (_, _, cc, cd, ce), (*_, dd, de), (*_, ee) = matrix
    va, vb, vc, vd, ve = vector
    a, b, c, d, e = fit
    for _ in range(_SWEEPS):
        before = (a, b, c, d, e)
        if aa > _FADED:
            a = max(0.0, (va - (ab * b + ac * c + ad * d + ae * e)) / aa)
        if bb > _FADED:
            b = max(0.0, (vb - (ab * a + bc * c + bd * d + be * e)) / bb)
        if cc > _FADED:
            c = max(0.0, (vc - (ac * a + bc * b + cd * d + ce * e)) / cc)
        if dd > _FADED:
            d = max(0.0, (vd - (ad * a + bd * b + cd * c + de * e)) / dd)
        if ee > _FADED:
            e = max(0.0, (ve - (ae * a + be * b + ce * c + de * d)) / ee)
        if before == (a, b, c, d, e):
            break
    return [a, b, c, d, e]


def _features(load: StepLoad) -> tuple[float, float, float, float, float]:
    return (
        1.0,
        float(load.decode_rows),
        float(load.prefill_rows),
        float(load.decode_context),
        load.prefill_context,
    )


def _largest_root(square: float, linear: float, left: float, wanted: int) -> int:
    """Return the most rows, up to `wanted`, with square * rows**2 + linear * rows <= left."""
    if square * wanted * wanted + linear * wanted <= left:
        return wanted
    if square <= 0.0:
        return int(left / linear)
    root = (linear * linear + 4.0 * square * left) ** 0.5
    return int((root - linear) / (2.0 * square))
