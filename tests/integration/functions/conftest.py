import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import boto3
import pytest
from moto import mock_aws
from mypy_boto3_sqs import SQSClient

FUNCTIONS = Path(__file__).parents[3] / "functions"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mock AWS in this process, without any resources."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        yield


@pytest.fixture
def sqs() -> SQSClient:
    return boto3.client("sqs")


@pytest.fixture
def load() -> Callable[[str], ModuleType]:
    """Return a function that imports the `app.py` of a function again, as a cold start does."""

    def load_function(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{name}_app", FUNCTIONS / name / "app.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_function
