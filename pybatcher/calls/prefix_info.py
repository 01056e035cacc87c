"""`PrefixInfo`: a description of a shared prefix, for callers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors.checks import LONGEST_NAME, REQUEST

if TYPE_CHECKING:
    from typing import Self

__all__ = ["PrefixInfo", "Prefixes", "check_prefix_name"]


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """Tokens that are computed once and kept for the prompts that begin with them.

    name: the argument of `remove_prefix`. None for the system prompt, and for the beginning that it
        gives all chats.
    namespace: only prompts of this namespace use the prefix; None is the common namespace.
    n_tokens: the length of the prefix. Each of its KV blocks exists once, whatever number of
        requests use it.
    computed_tokens: the number of tokens whose KV is computed: all, except while the prefix is
        being computed, at first or after a restart of the engine.
    holders: how many times the prefix was added under this name and not yet removed.
    """

    name: str | None
    namespace: str | None
    n_tokens: int
    computed_tokens: int
    holders: int


class Prefixes(tuple[PrefixInfo, ...]):
    """The shared prefixes, as `AnyBatcher.prefixes` returns them. Awaiting them is optional."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # makes this a generator; never reached


def check_prefix_name(name: object) -> str:
    """Return the name of a prefix, a text that is not empty. Raises InvalidRequestError."""
    wanted = "a text of at least one character"
    return REQUEST.text("name", name, wanted, may_be_empty=False, most=LONGEST_NAME)
