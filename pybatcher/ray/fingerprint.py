"""`fingerprint_of`: identifies replicas that generate the same tokens."""

from __future__ import annotations

import hashlib
from typing import Any

from ..batcher import Batcher
from ..errors.distribution import version

__all__ = ["fingerprint_of"]

_PROBED = 64
_OWN_NAMESPACE = "pybatcher fingerprint"
_NOT_OF_BITS = ("n_threads", "n_ctx", "kv_bytes", "kv_windows", "kv_states", "weights_cache")


async def fingerprint_of(batcher: Batcher) -> str:
    """Return a text that is equal for replicas that can continue each other's outputs.

    It names the version, the device and its instruction set, and the dtypes; and it has a digest of
    the log-probabilities, bit for bit, that the model assigns to a fixed row of tokens, and of
    their texts. By schedule invariance the bits are equal if these are equal. A file's name, time
    or inode would not do: replicas are on different machines.
    """
    engine: Any = batcher.runtime.engine
    told: dict[str, Any] = dict(engine.description())
    n_tokens = min(_PROBED, engine.max_sequence_length - 1)
    step = max(1, engine.vocab_size // n_tokens)
    tokens = [i * step % engine.vocab_size for i in range(n_tokens)]
    (score,) = await batcher.score(tokens[:1], [tokens[1:]], namespace=_OWN_NAMESPACE)
    digest = hashlib.sha256(await _texts(batcher, tokens))
    digest.update(" ".join(one.hex() for one in score.token_logprobs).encode())
    facts = [f"{name}={told[name]}" for name in sorted(told) if name not in _NOT_OF_BITS]
    return " ".join([version(), *facts, f"bits={digest.hexdigest()[:32]}"])


async def _texts(batcher: Batcher, tokens: list[int]) -> bytes:
    return (await batcher.detokenize(tokens)).encode("utf-8", "replace")
