"""`Limits`: the limits of one connection of the sidecar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import ConfigError

__all__ = ["Limits"]

_RANGES = {
    "max_frame": (64, 2**31 - 1),
    "max_depth": (3, 512),  # a delta has three levels: the frame, its params, the map in them
    "max_in_flight": (1, 2**20),
    "max_elements": (64, 2**26),
    "image_bytes": (0, 2**40),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one connection. Messages beyond them are refused.

    max_frame: most bytes of a frame.
    max_depth: most nested containers (arrays and maps, also empty ones), the frame's own array
        being the first.
    max_in_flight: most requests that wait for their Response at a time.
    max_elements: most elements of one array of an answer; a quarter of it for a request, since a
        server that builds one delays all others. A map may have a sixteenth of it in pairs, and a
        frame as a whole twice as many elements, where a container counts as 8 more: about the
        memory that it takes.
    image_bytes: most bytes of the images that a client has sent and that are kept for later
        messages; those of one message must fit.
    free_memory: returns the bytes of memory that are left, None if that is unknown; a long frame
        that takes more is refused while it comes. None: memory is not looked at.
    Raises ConfigError for values out of range.
    """

    max_frame: int = 16 * 2**20
    max_depth: int = 32
    max_in_flight: int = 1024
    max_elements: int = 2**20
    image_bytes: int = 2**27
    free_memory: Callable[[], int | None] | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(
                    f"{name} is {value!r}; it must be a whole number from {low} to {high}"
                )

    @property
    def of_requests(self) -> Limits:
        """The limits of messages that a client sends."""
        return replace(self, max_elements=max(self.max_elements // 4, _RANGES["max_elements"][0]))

    @property
    def max_delta(self) -> int:
        """The most bytes of pieces that are merged into one delta: far fewer than a message may
        have.
        """
        return min(self.max_frame // 4, self.max_elements)

    @property
    def max_pairs(self) -> int:
        """Most pairs of one map."""
        return self.max_elements // 16

    @property
    def max_weight(self) -> int:
        """The most elements of a frame, all containers together, each counted as 8 more."""
        return 2 * self.max_elements
