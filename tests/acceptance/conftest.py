import os
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from mypy_boto3_dynamodb import DynamoDBServiceResource

from tests.acceptance.runtime import link_packages

ROOT = Path(__file__).parents[2]
SAM = Path(sysconfig.get_path("scripts")) / "sam"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `sam build` made of the template: what a deployment uploads.

    All of it is plain Python copied by makefiles, the same for every Python version and architecture, so that what
    is built for the template's python3.13 on arm64 runs here too.
    """
    folder = tmp_path_factory.mktemp("build")
    command = [str(SAM), "build", "--build-dir", str(folder), "--no-cached"]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": "us-east-1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="session")
def lambda_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what Lambda's Python has of its own: boto3 and the runtime client."""
    pytest.importorskip("awslambdaric", reason="Lambda's runtime client has builds for Linux only")
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
    """The URL of an AWS on this machine, with nothing in it."""
    reset = urllib.request.Request(f"{moto}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()
    return moto


@pytest.fixture
def dynamodb(aws: str) -> DynamoDBServiceResource:
    return boto3.resource(
        "dynamodb",
        endpoint_url=aws,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
