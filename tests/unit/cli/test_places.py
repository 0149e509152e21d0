"""Where a command acts, by its options, the environment, the profile and the queue."""

import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ProfileNotFound

from tarry.failed.usage import UsageError
from tarry.tools.cli.failed.targets import AwsAccess, at_place, requests_go_to
from tarry.tools.cli.options import TargetOptions
from tarry.tools.local.instances import announced

LOCAL = "http://127.0.0.1:5001"
VPC = "https://vpce-1a2b.sqs.eu-west-1.vpce.amazonaws.com"
AWS = "https://sqs.eu-west-1.amazonaws.com"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.yaml").touch()
    return tmp_path


def place(**options: Any) -> tuple[str, bool]:
    """Return where requests go, and whether the user said it."""
    where = at_place(TargetOptions(**options))
    assert AwsAccess(where).client("sqs").meta.endpoint_url == requests_go_to(where)
    return requests_go_to(where), where.is_placed


def test_without_a_place_it_is_aws(folder: Path) -> None:  # SPEC M3
    assert place() == (AWS, False)


def test_without_a_place_it_is_the_tarry_local_that_runs_the_template(folder: Path) -> None:  # SPEC M3
    with announced(LOCAL, folder / "template.yaml"):
        assert place() == place(template=folder / "template.yaml") == (LOCAL, False)
        assert place(local=True) == (LOCAL, True)
        assert place(aws=True) == place(stack="shop") == (AWS, True)
        assert place(region="eu-west-1")[0] == AWS, "a region is one of AWS"
    assert place(local=True) == ("http://127.0.0.1:4576", True)


def test_a_port_is_that_of_a_tarry_local(folder: Path) -> None:  # SPEC M3
    with announced(LOCAL, folder / "template.yaml"):
        assert place(port=5002) == place(port=5002, local=True) == ("http://127.0.0.1:5002", True)


@pytest.mark.parametrize("url", [LOCAL, VPC])
def test_an_endpoint_of_the_option_the_environment_or_the_profile_says_where(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    assert place(endpoint_url=url) == (url, True)
    (folder / "config").write_text(f"[default]\nendpoint_url = {url}\n")
    assert place() == (url, True)
    (folder / "config").unlink()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    assert place() == (url, True)
    assert place(aws=True) == (VPC if url == VPC else AWS, True)
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert place() == (AWS, False)


def test_a_profile_of_the_environment_that_does_not_exist_matters_only_at_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert place(port=5002) == ("http://127.0.0.1:5002", True)
    with pytest.raises(ProfileNotFound):
        place(aws=True)
    with pytest.raises(ProfileNotFound):
        place(port=5002, profile="nobody")


def test_a_proxy_is_for_aws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    at_aws, local = (AwsAccess(TargetOptions(endpoint_url=url)).client("sqs") for url in (VPC, LOCAL))
    assert at_aws.meta.config.proxies is None, "boto3 takes those of the environment"
    assert local.meta.config.proxies == {}


def test_the_url_of_a_queue_says_where(folder: Path) -> None:  # SPEC M3
    assert place(queue=f"{LOCAL}/123456789012/orders") == (LOCAL, True)
    assert place(queue=f"{AWS}/123456789012/orders") == (AWS, True)
    assert place(queue="orders") == (AWS, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"local": True, "aws": True}, "--local and --aws cannot be combined"),
        ({"local": True, "stack": "shop"}, "tarry local has no stacks: give --aws instead of --local"),
        ({"port": 5002, "stack": "shop"}, "tarry local has no stacks: give --aws instead of --port"),
        ({"port": 5002, "aws": True}, "--port and --aws cannot be combined"),
        ({"aws": True, "queue": f"{LOCAL}/1/orders"}, "is local, but requests go to AWS"),
        ({"endpoint_url": "localhost:4576"}, "'localhost:4576' is not an endpoint URL"),
    ],
)
def test_places_that_contradict_each_other_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        place(**options)


def test_another_service_is_not_at_the_vpc_endpoint_of_sqs() -> None:
    account = AwsAccess(TargetOptions(endpoint_url=VPC))
    assert (account.is_aws, account.endpoint) == (True, VPC)
    assert account.client("lambda").meta.endpoint_url == "https://lambda.eu-west-1.amazonaws.com"
    emulator = AwsAccess(TargetOptions(endpoint_url=LOCAL))
    assert (emulator.is_aws, emulator.client("lambda").meta.endpoint_url) == (False, LOCAL)
