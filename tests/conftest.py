"""What holds for all tests."""

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.loaders import Loader, create_loader

from tests.leftovers import Leftovers


def pytest_configure(config: pytest.Config) -> None:
    """A worker of pytest-xdist is started with the mark of its run."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Leftovers())


def pytest_xdist_auto_num_workers() -> int | None:
    """One worker more than there are cores, which works while others wait: for a process, a timeout, an answer."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.fixture(scope="session", autouse=True)
def _services_are_read_once() -> Iterator[None]:
    """Let all boto3 sessions share what botocore reads of the services: it takes longer than most tests."""
    loaders: dict[str | None, Loader] = {}

    def shared(search_path_string: str | None = None) -> Loader:
        if search_path_string not in loaders:
            loaders[search_path_string] = create_loader(search_path_string)
        return loaders[search_path_string]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", shared)
        yield


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
