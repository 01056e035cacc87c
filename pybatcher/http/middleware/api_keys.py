"""`ApiKeys`: the keys that requests must have, and the namespaces that they stand for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from ...errors import ConfigError

__all__ = ["ApiKeys"]


class ApiKeys:
    """The keys of an application, which may be replaced while it serves.

    keys: None: none is asked for. Each is a namespace of the prefix cache: nobody can find out
        by its times what another one's prompts begin with. Raises ConfigError.
    """

    def __init__(self, keys: Collection[str] | None) -> None:
        self.replace(keys)

    def replace(self, keys: Collection[str] | None) -> None:
        """Ask new requests for one of these keys; None: for none. Raises ConfigError."""
        if keys is None:
            self._known: list[tuple[bytes, str]] | None = None
            return
        if isinstance(keys, (str, bytes)) or not keys:
            raise ConfigError("api_keys must be a list of at least one text, or None")
        self._known = [_known(key) for key in keys]

    @property
    def are_asked_for(self) -> bool:
        """True where a request has to have a key."""
        return self._known is not None

    def namespace_of(self, key: str) -> str | None:
        """Return the namespace of a key; None: it is not known."""
        data, found = key.encode("utf-8", "replace"), None
        for known, namespace in self._known or ():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, data):
                found = namespace
        return found


def _known(key: object) -> tuple[bytes, str]:
    if not isinstance(key, str) or not key or not key.isascii():
        raise ConfigError("api_keys has a key that is no text of ASCII characters")
    data = key.encode()
    return data, "key-" + hashlib.sha256(data).hexdigest()[:16]
