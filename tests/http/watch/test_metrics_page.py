from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pybatcher.http.base.model_list import ModelList
from pybatcher.http.watch.metrics_page import MetricsPage
from pybatcher.testing import fake_batcher


async def test_two_models_of_one_checkpoint_are_told_apart() -> None:
    async with fake_batcher() as first, fake_batcher() as second:
        assert first.model_name == second.model_name
        page = MetricsPage(ModelList({"a": first, "b": second}))
        await first.generate("Hi", max_tokens=3)
        await second.generate("Hi", max_tokens=5)
        text = (await page.text()).decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        for name, values in (
            ("pybatcher:generation_tokens", {"a": 3, "b": 5}),
            ("pybatcher:num_requests_running", {"a": 0, "b": 0}),
        ):
            found = families[name].samples
            assert {sample.labels["model_name"]: sample.value for sample in found} == values
        assert len(families) == text.count("# TYPE ")
        ends = families["pybatcher:request_success"].samples
        assert {(s.labels["model_name"], s.labels["finished_reason"]) for s in ends} >= {
            ("a", "length"),
            ("b", "length"),
        }
    assert 'model_name="' not in (await page.text()).decode()


async def test_one_without_a_name_has_its_own() -> None:
    async with fake_batcher() as batcher:
        page = MetricsPage(ModelList(batcher))
        assert f'model_name="{batcher.model_name}"' in (await page.text()).decode()


@pytest.mark.parametrize("name", ["a", "b"])
async def test_one_that_has_ended_has_no_samples(name: str) -> None:
    async with fake_batcher() as first:
        async with fake_batcher() as second:
            page = MetricsPage(ModelList({"a": first, "b": second}))
        text = (await page.text()).decode()
        assert (f'model_name="{name}"' in text) == (name == "a")
