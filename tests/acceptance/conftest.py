from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.acceptance.runtime import Start, layers_of, link_packages, running
from tests.builds import build
from tests.shop import shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mypy_boto3_dynamodb import DynamoDBServiceResource

    from tests.acceptance.runtime_api import FakeRuntimeApi

__all__ = ["build", "shop"]


@pytest.fixture(scope="session")
def lambda_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the Python runtime of Lambda: boto3 and the runtime client."""
    pytest.importorskip("awslambdaric", reason="the runtime client of Lambda has builds only for Linux")
    folder = tmp_path_factory.mktemp("lambda")
    link_packages(folder, "boto3", "awslambdaric")
    return folder


@pytest.fixture
def start(build: Path, lambda_packages: Path) -> Start:
    """Return a function that starts a built function, with only the layers in the built template."""

    def start_function(name: str, **environment: str) -> AbstractContextManager[FakeRuntimeApi]:
        return running(build / name, layers_of(build, name), lambda_packages, environment)

    return start_function


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


@pytest.fixture
def dynamodb(aws: str) -> DynamoDBServiceResource:
    session = boto3.Session(region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing")
    return session.resource("dynamodb", endpoint_url=aws)
