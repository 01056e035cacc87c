"""`PrefixNames`: the names of shared prefixes, their holders, and the callers that wait for KV."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..calls.prefix_info import PrefixInfo
from ..errors import InvalidRequestError, PybatcherError
from ..scheduling import Scheduler, SharedPrefix, own_copy
from .mailbox import HoldPrefix, Message, PrefixMessage, ReleasePrefix, WithdrawPrefix

__all__ = ["PrefixNames"]


@dataclass(slots=True)
class _Named:
    name: str
    prefix: SharedPrefix
    holders: int = 0

    @property
    def info(self) -> PrefixInfo:
        return _info(self.name, self.prefix, self.holders)


class PrefixNames:
    """The names of a scheduler's prefixes. One owner, one thread; a prefix may have several names.

    A name that was added twice stays until it was removed twice. The caller that adds a prefix gets
    the answer when its KV is computed, which a restart of the engine can delay.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._named: dict[tuple[str, str], _Named] = {}  # by namespace and name
        self._awaited: dict[asyncio.Future[PrefixInfo], _Named] = {}
        self._n_made_up = 0

    def handle(self, message: PrefixMessage) -> None:
        """Add, withdraw or remove a prefix, according to the message."""
        match message:
            case HoldPrefix():
                self._add(message)
            case WithdrawPrefix(withdrawn):
                self._withdraw(withdrawn)
            case ReleasePrefix():
                self._remove(message)

    def refuse(self, message: Message, error: PybatcherError) -> None:
        """Fail the sender of a prefix message that will not be handled; ignore other messages."""
        if isinstance(message, HoldPrefix) and not message.added.done():
            message.added.set_exception(error)
        elif isinstance(message, ReleasePrefix) and not message.removed.done():
            message.removed.set_exception(error)

    def settle(self, failure: PybatcherError | None) -> None:
        """Answer the callers whose prefix is computed now, or has failed.

        failure: an error for all waiting callers; None if prefixes are still being computed.
        """
        if not self._awaited:
            return
        if failure is not None:
            self._fail_all(failure)
        for added, named in list(self._awaited.items()):
            if added.done():
                continue  # the caller was cancelled; a `WithdrawPrefix` follows
            if not named.holders:
                del self._awaited[added]
                added.set_exception(
                    InvalidRequestError(f"prefix {named.name!r} was removed before it was there")
                )
            elif named.prefix.error is not None:
                del self._awaited[added]
                added.set_exception(own_copy(named.prefix.error))
                self._release(named)
            elif not named.prefix.num_tokens_to_compute:
                del self._awaited[added]
                added.set_result(named.info)

    def infos(self) -> tuple[PrefixInfo, ...]:
        """Return all prefixes: those without a name first, then in the order they were added."""
        kept = self._scheduler.prefixes
        held = {id(prefix): 0 for prefix in kept}
        named = [one for one in list(self._named.values()) if id(one.prefix) in held]
        for one in named:
            held[id(one.prefix)] += one.holders
        nameless = ((prefix, prefix.holders - held[id(prefix)]) for prefix in kept)
        return (
            *(_info(None, prefix, holders) for prefix, holders in nameless if holders),
            *(one.info for one in named),
        )

    def _add(self, message: HoldPrefix) -> None:
        try:
            named = self._hold(message)
        except PybatcherError as error:
            if not message.added.done():
                message.added.set_exception(error)
            return
        self._awaited[message.added] = named

    def _withdraw(self, message: HoldPrefix) -> None:
        added = message.added
        named = self._awaited.pop(added, None)
        if named is not None:
            self._release(named)
        elif not added.cancelled() and added.exception() is None:
            named = self._named.get((message.namespace, str(added.result().name)))
            if named is not None:
                self._release(named)

    def _remove(self, message: ReleasePrefix) -> None:
        named = self._named.get((message.namespace, message.name))
        if named is not None:
            self._release(named)
        if message.removed.done():
            return
        if named is not None:
            message.removed.set_result(None)
            return
        known = sorted(name for space, name in self._named if space == message.namespace)
        message.removed.set_exception(
            InvalidRequestError(
                f"name is {message.name!r}, and no prefix of this namespace is called so; "
                f"there are: {', '.join(known) or 'none'}",
                field="name",
            )
        )

    def _fail_all(self, error: PybatcherError) -> None:
        while self._awaited:
            added, named = self._awaited.popitem()
            if not added.done():
                added.set_exception(own_copy(error))
            self._release(named)

    def _hold(self, message: HoldPrefix) -> _Named:
        name = message.name or self._make_up_name(message.namespace)
        key = message.namespace, name
        named = self._named.get(key)
        if named is not None and named.prefix.tokens != message.tokens:
            raise InvalidRequestError(
                f"name is {name!r}, which is that of another prefix, of "
                f"{len(named.prefix.tokens)} tokens: choose another, or remove that one first",
                field="name",
            )
        prefix = self._scheduler.add_prefix(message.tokens, message.namespace)
        if named is None:
            named = self._named[key] = _Named(name, prefix)
        named.holders += 1
        return named

    def _make_up_name(self, namespace: str) -> str:
        while True:
            self._n_made_up += 1
            name = f"prefix-{self._n_made_up}"
            if (namespace, name) not in self._named:
                return name

    def _release(self, named: _Named) -> None:
        if not named.holders:
            return  # another holder has removed the prefix meanwhile
        named.holders -= 1
        if not named.holders:
            del self._named[named.prefix.namespace or "", named.name]
        self._scheduler.remove_prefix(named.prefix)


def _info(name: str | None, prefix: SharedPrefix, holders: int) -> PrefixInfo:
    n_tokens = len(prefix.tokens)
    return PrefixInfo(name, prefix.namespace or None, n_tokens, prefix.num_computed_tokens, holders)
