"""tarry's own clients: what they read, and that they are those of boto3 in everything that AWS sees."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import NoRegionError, UnknownServiceError

from tarry.record import attempt_store
from tarry.sqs.client import make_client
from tarry.support.clients import client_with

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
PROFILES = """
[default]
region = eu-central-1
aws_access_key_id = of-a-file
aws_secret_access_key = of-a-file
services = local
[profile other]
region = ap-southeast-2
aws_access_key_id = of-the-other
aws_secret_access_key = of-the-other
use_dualstack_endpoint = true
[services local]
sqs =
  endpoint_url = http://localhost:9324
"""
CHINA = {"AWS_DEFAULT_REGION": "cn-north-1"}
ENVIRONMENTS = {
    "a region": {"AWS_DEFAULT_REGION": "us-east-1"},
    "an early region": {"AWS_DEFAULT_REGION": "eu-west-1"},
    "a region that is not known": {"AWS_DEFAULT_REGION": "eu-north-7"},
    "China": CHINA,
    "GovCloud": {"AWS_DEFAULT_REGION": "us-gov-west-1"},
    "the European cloud": {"AWS_DEFAULT_REGION": "eusc-de-east-1"},
    "FIPS": {"AWS_DEFAULT_REGION": "us-east-1", "AWS_USE_FIPS_ENDPOINT": "true"},
    "FIPS and IPv6": {
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
    },
    "IPv6 in China": {**CHINA, "AWS_USE_DUALSTACK_ENDPOINT": "true"},
    "an endpoint": {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://localhost:4566"},
    "an endpoint of each service": {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://localhost:4566",
        "AWS_ENDPOINT_URL_SQS": "http://localhost:9324",
        "AWS_ENDPOINT_URL_DYNAMODB": "http://localhost:8000",
    },
    "an endpoint that is not to be used": {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_SQS": "http://localhost:9324",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    },
    "a profile": {},
    "another profile": {"AWS_PROFILE": "other"},
    "other retries": {"AWS_DEFAULT_REGION": "us-east-1", "AWS_RETRY_MODE": "adaptive", "AWS_MAX_ATTEMPTS": "7"},
    "the defaults of a mode": {"AWS_DEFAULT_REGION": "us-east-1", "AWS_DEFAULTS_MODE": "in-region"},
}


def seen_of(client: Any) -> dict[str, Any]:
    """Return the settings of a client, and a request: all but its time, signature and user agent."""
    requests = []

    def stop(request: Any, **_: Any) -> None:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in CHANGING}
        signed = request.headers["Authorization"].decode().partition(", Signature")[0]
        requests.append((request.method, request.url, headers, signed, request.body))
        raise InterruptedError

    client.meta.events.register_last("before-send", stop)
    request = REQUESTS[client.meta.service_model.service_name]
    with pytest.raises(InterruptedError):
        request(client)
    config = {name: value for name, value in vars(client.meta.config).items() if not name.startswith("_")}
    return {
        "endpoint": client.meta.endpoint_url,
        "region": client.meta.region_name,
        "partition": client.meta.partition,
        "config": {name: value for name, value in config.items() if "user_agent" not in name},
        "requests": requests,
    }


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "sqs": lambda client: client.get_queue_attributes(QueueUrl="http://queue", AttributeNames=["All"]),
    "dynamodb": lambda client: client.get_item(TableName="table", Key={"id": {"S": "1"}}),
}
CHANGING = ("user-agent", "x-amz-date", "authorization", "amz-sdk-invocation-id")


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("make", [make_client, attempt_store.make_client], ids=["SQS", "DynamoDB"])
def test_a_client_sends_the_same_request_to_the_same_place_as_a_client_of_boto3(
    make: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(PROFILES)
    keys = KEYS if "AWS_DEFAULT_REGION" in environment else {}
    for name, value in {"AWS_CONFIG_FILE": str(tmp_path / "config"), **keys, **environment}.items():
        monkeypatch.setenv(name, value)
    client = make()
    config = client.meta.config
    of_tarry = Config(
        connect_timeout=1,
        read_timeout=5 if make is make_client else 1,
        retries={"total_max_attempts": 2, "mode": "standard"},
        parameter_validation=config.parameter_validation,
    )
    of_boto3 = boto3.session.Session().client(client.meta.service_model.service_name, config=of_tarry)
    assert seen_of(client) == seen_of(of_boto3)


def test_without_a_region_there_is_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(NoRegionError):
        make_client()


def test_a_client_is_made_of_the_models_in_the_data_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = {
        "metadata": {"apiVersion": "2030-01-01", "endpointPrefix": "sqs", "protocol": "json", "serviceId": "SQS",
                     "signatureVersion": "v4", "jsonVersion": "1.0", "targetPrefix": "New"},
        "operations": {"Peek": {"name": "Peek", "http": {"method": "POST", "requestUri": "/"}}},
        "shapes": {},
    }  # fmt: skip
    (folder := tmp_path / "sqs/2030-01-01").mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps(model))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert hasattr(make_client(), "peek")
    monkeypatch.delenv("AWS_DATA_PATH")
    assert not hasattr(make_client(), "peek")


def test_a_service_that_botocore_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownServiceError, match="'sqz'"):
        client_with(Config(region_name="us-east-1"), "sqz")


def test_clients_load_no_boto3_and_read_the_data_of_their_services_once() -> None:  # issue 38
    """Each client has a session of its own, for a thread must not use that of another."""
    script = """
import os, sys
os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
opened, listed = [], []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
sys.addaudithook(lambda event, args: event == "os.listdir" and listed.append(str(args[0])))
from tarry.record import attempt_store
from tarry.sqs.client import make_client
first = make_client()
listed_by_first = len([path for path in listed if "botocore" in path and "data" in path])
second, third = make_client(), attempt_store.make_client()
data = [path for path in opened if "/botocore/data/" in path]
assert len(data) == len(set(data)), data
assert listed_by_first <= 4, listed
assert {path.split("/data/")[1].partition("/")[0] for path in data if path.count("/data/") == 1 and "20" in path} == {
    "sqs", "dynamodb"
}, data
assert first.meta.events is not second.meta.events
assert not {"boto3", "s3transfer", "multiprocessing"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", script], check=True)
