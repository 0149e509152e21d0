import os
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from mypy_boto3_dynamodb import DynamoDBServiceResource
from mypy_boto3_s3 import S3Client
from samtranslator.yaml_helper import yaml_parse

from tests.acceptance.runtime import Start, link_packages, running
from tests.acceptance.runtime_api import FakeRuntimeApi

ROOT = Path(__file__).parents[2]
SAM = Path(sysconfig.get_path("scripts")) / "sam"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `sam build` made of the template, as it would be deployed.

    It contains only Python files copied by makefiles, which are the same for every Python version and architecture, so
    the build for python3.13 on arm64 runs here too.
    """
    folder = tmp_path_factory.mktemp("build")
    command = [str(SAM), "build", "--build-dir", str(folder), "--no-cached"]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": "us-east-1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="session")
def lambda_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the Python runtime of Lambda: boto3 and the runtime client."""
    pytest.importorskip("awslambdaric", reason="the runtime client of Lambda has builds only for Linux")
    folder = tmp_path_factory.mktemp("lambda")
    link_packages(folder, "boto3", "awslambdaric")
    return folder


@pytest.fixture(scope="session")
def powertools_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replacement for the public Powertools layer of AWS, which is built for arm64 and cannot be downloaded here.

    It has the same packages, in the versions of `constraints.txt`.
    """
    folder = tmp_path_factory.mktemp("powertools")
    (folder / "python").mkdir()
    link_packages(folder / "python", "aws-lambda-powertools", "pydantic")
    return folder


@pytest.fixture
def start(build: Path, lambda_packages: Path, powertools_layer: Path) -> Start:
    """Return a function that starts a built function, with only the layers in the built template."""
    template = yaml_parse((build / "template.yaml").read_text())
    of_all = template["Globals"]["Function"]["Layers"]

    def folder_of(layer: dict[str, Any]) -> Path:
        if "Ref" in layer:
            return build / str(layer["Ref"])
        assert ":layer:AWSLambdaPowertoolsPythonV3-" in layer["Fn::Sub"]
        return powertools_layer

    def start_function(name: str, **environment: str) -> AbstractContextManager[FakeRuntimeApi]:
        layers = [*of_all, *template["Resources"][name]["Properties"].get("Layers", [])]
        return running(build / name, [folder_of(layer) for layer in layers], lambda_packages, environment)

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


def session() -> boto3.Session:
    return boto3.Session(region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing")


@pytest.fixture
def dynamodb(aws: str) -> DynamoDBServiceResource:
    return session().resource("dynamodb", endpoint_url=aws)


@pytest.fixture
def s3(aws: str) -> S3Client:
    return session().client("s3", endpoint_url=aws)
