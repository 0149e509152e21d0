from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest
from moto.server import ThreadedMotoServer

from tests.acceptance.runtime import link_packages
from tests.builds import build
from tests.shop import shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["build", "shop"]


@pytest.fixture(scope="session")
def lambda_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the Python runtime of Lambda: boto3 and the runtime client."""
    pytest.importorskip("awslambdaric", reason="the runtime client of Lambda has builds only for Linux")
    folder = tmp_path_factory.mktemp("lambda")
    link_packages(folder, "boto3", "awslambdaric")
    return folder


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto: str) -> str:
    """The URL of a local AWS without resources."""
    reset = urllib.request.Request(f"{moto}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()
    return moto
