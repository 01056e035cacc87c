"""What a Prometheus server makes of an exposition."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from pybatcher.metrics import Metrics


class Scrape:
    """The samples of an exposition, by name and labels."""

    def __init__(self, metrics: Metrics) -> None:
        self.families = list(text_string_to_metric_families(metrics.exposition().decode()))
        self.samples = [sample for family in self.families for sample in family.samples]
        self.told: dict[str, list[tuple[dict[str, str], float]]] = {}
        for sample in self.samples:
            self.told.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __getitem__(self, name: str) -> float:
        """The only sample of a name."""
        (value,) = [s.value for s in self.samples if s.name == f"pybatcher:{name}"]
        return value

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of a name, by a label's value."""
        return {s.labels[label]: s.value for s in self.samples if s.name == f"pybatcher:{name}"}
