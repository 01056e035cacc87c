"""`StepCost`: estimates the cost of a row and of an empty step from measured steps."""

from __future__ import annotations

__all__ = ["StepCost"]

_ASSUMED = (
    8.0  # rows that cost as much as an empty step, before steps of several sizes are measured
)
_PRIOR_WEIGHT = 0.01  # weight of the assumption beside one measurement
_DECAY = 0.98  # weight that a step keeps when the next is measured
_LEAST, _MOST = 1.0, 64.0


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
            return _ASSUMED
        if self._row <= 0.0 or self._empty_step > self._row * _MOST:
            return _MOST
        return max(_LEAST, self._empty_step / self._row)

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
        more = rows + _ASSUMED
        more_seconds = seconds * (more + _ASSUMED) / (rows + _ASSUMED)
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
