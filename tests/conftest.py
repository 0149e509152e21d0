"""What holds for all tests."""

import gc
from collections.abc import Generator
from typing import Any

import pytest

from tests.leftovers import Leftovers


def pytest_configure(config: pytest.Config) -> None:
    """A worker of pytest-xdist is started with the mark of its run."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Leftovers())


def pytest_collection_finish() -> None:
    """Take the thousands of collected tests out of each garbage collection: no Lambda process holds as much."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Tests log hostile text on purpose; what was captured of it must get from a worker to the one that reports."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report
