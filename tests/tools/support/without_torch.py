"""A plugin of pytest, `-p without_torch`: what fails for lack of torch or transformers is skipped.

For Pythons that PyPI has no CPU build of torch for. `make test-python` counts what is left out.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

import pytest

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

_LACKS = re.compile(r"No module named '(torch|transformers)\b")
_REPORT = TypeVar("_REPORT", pytest.CollectReport, pytest.TestReport)


def _skipped(report: _REPORT, path: str) -> _REPORT:
    """Return the report, of a skip if it was of a failure for lack of torch."""
    if report.failed and (lacks := _LACKS.search(report.longreprtext)):
        report.outcome = "skipped"
        report.longrepr = (path, 0, f"Skipped: {lacks[0]}'")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _skipped((yield), str(collector.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _skipped((yield), str(item.path))
