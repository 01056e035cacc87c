"""`FairSlots`: a limited number of slots that tenants share fairly."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

__all__ = ["FairSlots"]


class FairSlots:
    """Slots for work beside the event loop. For one event loop.

    A free slot goes to the waiting tenant that holds the fewest; tenants that hold equally many
    take turns. The calls of one tenant are served in their order.

    n_slots: how many there are. most_each: how many of them one tenant may hold, so that its slow
        work leaves slots for others.
    """

    def __init__(self, n_slots: int, most_each: int) -> None:
        self._n_free = n_slots
        self._most_each = most_each
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant, in their turns

    @property
    def n_held(self) -> int:
        """The number of slots that are held."""
        return self._held.total()

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot. A call that is cancelled while it waits takes none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            else:
                self._leave(tenant, turn)
            raise

    def release(self, tenant: str) -> None:
        """Give a slot of a tenant back."""
        self._n_free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._grant()

    def _grant(self) -> None:
        while self._n_free:
            free = [one for one in self._waiting if self._held[one] < self._most_each]
            if not free:
                return
            tenant = min(free, key=self._held.__getitem__)
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind the others
            if not turn.done():
                self._n_free -= 1
                self._held[tenant] += 1
                turn.set_result(None)

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]
