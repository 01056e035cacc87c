"""`MetricsPage`: the metrics of all models of a server, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from ...calls.any_batcher import AnyBatcher
from ...metrics import MODEL, Metrics
from ..base.model_list import ModelList

__all__ = ["MetricsPage"]


class MetricsPage:
    """The metrics of each model, with the model name of requests as a label.

    Metrics that are derived from events count from the creation of the page.
    """

    content_type = Metrics.content_type

    def __init__(self, models: ModelList) -> None:
        self._models = models
        self._batchers: list[AnyBatcher] = list(models.by_name.values())
        self._metrics = [_metrics(batcher) for batcher in self._batchers]
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def text(self) -> bytes:
        """Return the present metrics in the text format of Prometheus."""
        await asyncio.gather(*(one.refresh() for one in self._metrics))
        made: bytes = generate_latest(self._registry)
        return made

    def describe(self) -> Iterator[Any]:
        """Yield the metric families without samples, for the registry."""
        return self._metrics[0].describe()

    def collect(self) -> Iterator[Any]:
        """Yield each metric family once, with the samples of all models, for the registry."""
        families: dict[str, Any] = {}
        for name, metrics in zip(self._models.by_name, self._metrics, strict=True):
            for family in metrics.collect():
                own = [_of_model(sample, name) for sample in family.samples]
                known = families.setdefault(family.name, family)
                known.samples = own if known is family else known.samples + own
        yield from families.values()


def _metrics(batcher: Any) -> Metrics:
    return Metrics(batcher)


def _of_model(sample: Any, name: str) -> Any:
    """Return a sample labelled with this model name, because two models can share a checkpoint."""
    return sample._replace(labels={**sample.labels, MODEL: name})
