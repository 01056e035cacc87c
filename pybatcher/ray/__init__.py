"""Replicas on many machines, with Ray Serve: one line, and the HTTP application in front.

    from ray import serve
    import pybatcher.ray

    serve.run(pybatcher.ray.deployment("path/to/model", num_replicas=4))

Needs the extra: `pip install 'pybatcher-engine[ray]'`. Importing this needs no Ray;
`deployment` does.
"""

from __future__ import annotations

from .deployment import batcher, deployment
from .replicated_batcher import ReplicatedBatcher

__all__ = ["ReplicatedBatcher", "batcher", "deployment"]
