"""The build of the template, made once for all tests that need it."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.acceptance.runtime import sam_build


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `sam build` made of the template, for the Python and the architecture that run the tests.

    The first worker of pytest-xdist that needs it makes it for all of them. No test may change it.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build/template.yaml").exists():
            sam_build(folder / "build")
    return folder / "build"
