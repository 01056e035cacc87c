"""`ApiKeys`: the keys that requests must have, and the namespaces of these keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from ...errors import ConfigError

__all__ = ["ApiKeys", "hash_in"]

_PREFIX = "key-"
_SHORT = 8  # hexadecimal digits


class ApiKeys:
    """The keys of an application. They can be replaced while it serves.

    keys: the accepted keys; None: no key is needed. Each key is a namespace of the prefix cache, so
        that nobody can infer from timings how another client's prompts begin. Raises ConfigError.
    """

    def __init__(self, keys: Collection[str] | None) -> None:
        self.replace(keys)

    def replace(self, keys: Collection[str] | None) -> None:
        """Require one of these keys of new requests. None: no key is needed. Raises ConfigError."""
        if keys is None:
            self._known: list[tuple[bytes, str]] | None = None
            return
        if isinstance(keys, (str, bytes)) or not keys:
            raise ConfigError("api_keys must be a list of at least one text, or None")
        self._known = [_known(key) for key in keys]

    @property
    def are_asked_for(self) -> bool:
        """True if a request must have a key."""
        return self._known is not None

    def namespace_of(self, key: str) -> str | None:
        """Return the namespace of a key. None: the key is unknown."""
        data, found = key.encode("utf-8", "replace"), None
        # Compares with all keys, so that the time reveals nothing.
        for known, namespace in self._known or ():
            if hmac.compare_digest(known, data):
                found = namespace
        return found


def _known(key: object) -> tuple[bytes, str]:
    if not isinstance(key, str) or not key or not key.isascii():
        raise ConfigError("api_keys has a key that is no text of ASCII characters")
    data = key.encode()
    return data, _PREFIX + hashlib.sha256(data).hexdigest()[:16]


def hash_in(namespace: str | None) -> str | None:
    """Return the first 8 hexadecimal digits of the SHA-256 of the key that has this namespace."""
    return None if namespace is None else namespace.removeprefix(_PREFIX)[:_SHORT]
