"""`PrefixInfo`: what a caller is told of a prefix that is kept for it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors.checks import REQUEST

if TYPE_CHECKING:
    from typing import Self

__all__ = ["PrefixInfo", "Prefixes", "check_prefix_name"]


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """Tokens that are computed once and kept for the prompts that begin with them.

    name: what `remove_prefix` takes. None: of the system prompt, or of how chats
        with it begin.
    namespace: prompts of this one only use it; None is the common one.
    n_tokens: its length. Each KV block of them is there once, whoever uses it.
    computed_tokens: of these, how many have their KV. All, but while it is being
        computed, and for a moment after a restart of the engine.
    holders: how many times it was added by this name and not yet removed.
    """

    name: str | None
    namespace: str | None
    n_tokens: int
    computed_tokens: int
    holders: int


class Prefixes(tuple[PrefixInfo, ...]):
    """The prefixes that are kept. `await prefixes` is `prefixes`: see `AnyBatcher.prefixes`."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # a generator that waits for nothing


def check_prefix_name(name: object) -> str:
    """Return a text that is not empty. Raises InvalidRequestError."""
    return REQUEST.text("name", name, "a text of at least one character", may_be_empty=False)
