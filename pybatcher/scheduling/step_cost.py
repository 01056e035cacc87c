"""`StepCost`: what a row costs beside an empty step, learnt from the steps there were."""

from __future__ import annotations

__all__ = ["StepCost"]

_ASSUMED = 8.0  # rows that an empty step costs as much as, until steps of several sizes were seen
_DOUBT = 0.01  # how much of a measurement the assumption counts as
_FORGETTING = 0.98  # what a step still counts when the next has been seen
_LEAST, _MOST = 1.0, 64.0


class StepCost:
    """Fits seconds = empty step + rows * row, by least squares that forget.

    A step takes time before its first row: the weights are read once, whatever
    the rows. How many rows that is worth depends on model, dtype and machine:
    from three for a model that fits into the cache to thirty and more.
    """

    def __init__(self) -> None:
        self._steps = self._rows = self._seconds = 0.0  # sums over steps that fade
        self._rows_squared = self._rows_seconds = 0.0
        self._row = self._empty_step = 0.0  # the fit, in seconds

    @property
    def rows_of_an_empty_step(self) -> float:
        """How many rows cost as much as a step without any."""
        if not self._steps:
            return _ASSUMED
        if self._row <= 0.0 or self._empty_step > self._row * _MOST:
            return _MOST
        return max(_LEAST, self._empty_step / self._row)

    @property
    def row(self) -> float:
        """Seconds that a row costs; 0.0 until a step was seen."""
        return self._seconds / (self._rows + self._steps * self.rows_of_an_empty_step or 1.0)

    def note(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        expected = self._empty_step + self._row * rows
        if expected > 0.0:  # a hiccup of the machine is not what a step costs
            seconds = min(max(seconds, expected / 2), expected * 2)
        # Beside each step a little of one with more rows, as the assumption has it: where all steps
        # are of one size, it alone says how steep the line is.
        more = rows + _ASSUMED
        more_seconds = seconds * (more + _ASSUMED) / (rows + _ASSUMED)
        self._steps = self._steps * _FORGETTING + 1.0 + _DOUBT
        self._rows = self._rows * _FORGETTING + rows + _DOUBT * more
        self._seconds = self._seconds * _FORGETTING + seconds + _DOUBT * more_seconds
        self._rows_squared = self._rows_squared * _FORGETTING + rows * rows + _DOUBT * more * more
        self._rows_seconds = (
            self._rows_seconds * _FORGETTING + rows * seconds + _DOUBT * more * more_seconds
        )
        covariance = self._steps * self._rows_seconds - self._rows * self._seconds
        variance = self._steps * self._rows_squared - self._rows * self._rows
        self._row = covariance / variance
        self._empty_step = (self._seconds - self._row * self._rows) / self._steps
