"""Where a command acts: by its options, the environment, the profile, the queue, and the `tarry local` that runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ProfileNotFound

from tarry.failed.usage import UsageError
from tarry.tools.cli.failed.targets import AwsAccess, at_place, requests_go_to
from tarry.tools.cli.options import TargetOptions
from tarry.tools.common.places import is_aws, place_text
from tarry.tools.local.aws.client import endpoint_of, sqs_client
from tarry.tools.local.instances import announced, directory, instance_here, instance_of

LOCAL, DEFAULT = "http://127.0.0.1:5001", "http://127.0.0.1:4576"
VPC = "https://vpce-1a2b.sqs.eu-west-1.vpce.amazonaws.com"
AWS = "https://sqs.eu-west-1.amazonaws.com"
OF_AWS = """
    https://sqs.us-east-1.amazonaws.com http://sqs.us-east-1.amazonaws.com https://sqs.cn-north-1.amazonaws.com.cn
    https://sqs.eusc-de-east-1.amazonaws.eu https://sqs.us-iso-east-1.c2s.ic.gov https://sqs.eu-west-1.api.aws
    https://vpce-1a2b.sqs.eu-west-1.vpce.amazonaws.com https://10.0.3.7 https://[fd00::7] https://sqs.internal
    https://sqs http://8.8.8.8 http://134744072 http://localhost.example.com
    http://localhost@sqs.us-east-1.amazonaws.com
"""
NOT_OF_AWS = """
    http://127.0.0.1:4576 https://127.0.0.1:4576 https://localhost:4566 http://LOCALHOST.:4566
    http://sqs.localhost:4566 http://[::1]:4576 http://[::ffff:127.0.0.1]:4576 http://0.0.0.0:4576
    http://172.17.0.2:4566 http://localstack:4566 http://host.docker.internal:4566
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a template, as the working directory, without settings of the developer."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "XDG_RUNTIME_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.yaml").touch()
    return tmp_path


# the endpoint of requests


@pytest.mark.parametrize(
    ("url", "expected"),
    [(url, True) for url in OF_AWS.split()] + [(url, False) for url in NOT_OF_AWS.split()],
)
def test_loopback_and_private_hosts_over_plain_http_are_local_and_all_others_aws(
    url: str, expected: bool
) -> None:  # SPEC M3
    assert is_aws(url) is expected


def test_a_place_is_named_by_its_account_and_region_or_by_its_address() -> None:  # SPEC M3
    assert place_text(AWS, "123456789012", "eu-west-1") == "AWS 123456789012 eu-west-1"
    assert place_text("http://user:secret@127.0.0.1:4576/") == "local 127.0.0.1:4576"


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, DEFAULT),
        (None, {"AWS_PROFILE": "production", "AWS_REGION": "eu-west-1"}, DEFAULT),
        (None, {"AWS_ENDPOINT_URL": ""}, DEFAULT),
        (None, {"AWS_ENDPOINT_URL": "http://localhost:4566/"}, "http://localhost:4566"),
        (None, {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_SQS": "http://b"}, "http://b"),
        ("http://c", {"AWS_ENDPOINT_URL_SQS": "http://b"}, "http://c"),
        *((wrong, {}, "") for wrong in ("localhost:4576", "ftp://localhost", "http://", "x")),
    ],
)
def test_the_endpoint_of_a_local_command_is_the_given_one_or_tarry_local(
    given: str | None, environment: dict[str, str], expected: str
) -> None:
    if expected:
        assert endpoint_of(given, environment) == expected
    else:
        with pytest.raises(UsageError, match=f"is not an endpoint URL; an example is {DEFAULT}$"):
            endpoint_of(given, environment)


def test_a_local_server_needs_no_profile_and_gets_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "000000000042")  # LocalStack uses it as the account
    assert sqs_client(DEFAULT)._request_signer._credentials.access_key == "000000000042"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "not-to-be-found")
    client = sqs_client(DEFAULT)
    assert (client.meta.endpoint_url, client._request_signer._credentials.access_key) == (DEFAULT, "local")


@pytest.mark.parametrize("url", [None, AWS])
def test_for_aws_a_configured_endpoint_is_ignored(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", LOCAL)
    assert sqs_client(url).meta.endpoint_url == AWS


# the place of a command


def place(**options: Any) -> tuple[str, bool]:
    """Return where requests go, and whether the user said it."""
    where = at_place(TargetOptions(**options))
    assert AwsAccess(where).client("sqs").meta.endpoint_url == requests_go_to(where)
    return requests_go_to(where), where.is_placed


def test_without_a_place_it_is_the_tarry_local_that_runs_the_template_or_aws(folder: Path) -> None:  # SPEC M3
    assert place() == (AWS, False)
    with announced(LOCAL, folder / "template.yaml"):
        assert place() == place(template=folder / "template.yaml") == (LOCAL, False)
        assert place(local=True) == (LOCAL, True)
        assert place(port=5002) == place(port=5002, local=True) == ("http://127.0.0.1:5002", True)
        assert place(aws=True) == place(stack="shop") == (AWS, True)
        assert place(region="eu-west-1")[0] == AWS, "a region is one of AWS"
    assert place(local=True) == (DEFAULT, True)


@pytest.mark.parametrize("url", [LOCAL, VPC])
def test_an_endpoint_of_the_option_the_environment_or_the_profile_or_the_url_of_a_queue_says_where(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    assert place(endpoint_url=url) == (url, True)
    assert place(queue=f"{LOCAL}/123456789012/orders") == (LOCAL, True)
    assert place(queue=f"{AWS}/123456789012/orders") == (AWS, True)
    assert place(queue="orders") == (AWS, False)
    (folder / "config").write_text(f"[default]\nendpoint_url = {url}\n")
    assert place() == (url, True)
    (folder / "config").unlink()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    assert place() == (url, True)
    assert place(aws=True) == (VPC if url == VPC else AWS, True)
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert place() == (AWS, False)


def test_a_profile_of_the_environment_that_does_not_exist_matters_only_at_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    assert place(port=5002) == ("http://127.0.0.1:5002", True)
    for options in ({"aws": True}, {"port": 5002, "profile": "missing"}):
        with pytest.raises(ProfileNotFound):
            place(**options)


def test_a_proxy_is_for_aws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    at_aws, local = (AwsAccess(TargetOptions(endpoint_url=url)).client("sqs") for url in (VPC, LOCAL))
    assert at_aws.meta.config.proxies is None, "boto3 takes those of the environment"
    assert local.meta.config.proxies == {}


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


# the files by which commands find the `tarry local` that runs a template


def test_a_running_instance_is_found_by_its_template_until_it_ends(folder: Path) -> None:
    (folder / "template.yaml").rename("template.yml")
    with announced(LOCAL, Path("template.yml")):
        found = instance_here()
        assert found is not None
        assert found.url == LOCAL
        assert instance_of(Path("other/template.yml")) is None
        assert endpoint_of(None, {}, running=instance_here) == LOCAL
        assert endpoint_of("http://a", {}, running=instance_here) == "http://a"
        assert endpoint_of(None, {"AWS_ENDPOINT_URL": "http://b"}, running=instance_here) == "http://b"
    assert instance_here() is None
    assert [*(folder / "tarry").iterdir()] == []
    (folder / "template.yml").unlink()
    assert instance_here() is None, "there is no template"


def test_the_last_that_started_is_found_and_none_whose_process_was_killed(folder: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    template, files = folder / "template.yaml", folder / "tarry"
    files.mkdir()
    for process_id, name, began_at in (
        (killed.pid, "killed", 3.0),
        (os.getppid(), "first", 1.0),
        (os.getpid(), "last", 2.0),
    ):
        fields = {"url": f"http://{name}", "template": str(template), "process_id": process_id, "began_at": began_at}
        (files / f"local-{process_id}.json").write_text(json.dumps(fields))
    (files / "local-x.json").write_text("{}")
    found = instance_of(template)
    assert found is not None
    assert found.url == "http://last"
    with announced("http://new", template):
        assert not (files / f"local-{killed.pid}.json").exists()
        assert (files / f"local-{os.getppid()}.json").exists()


def test_the_files_are_in_the_runtime_or_state_directory_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, home = {"XDG_RUNTIME_DIR": str(tmp_path)}, Path("/home/me")
    assert directory({**runtime, "XDG_STATE_HOME": "/none"}, home) == tmp_path / "tarry"
    assert directory({"XDG_RUNTIME_DIR": "/none", "XDG_STATE_HOME": str(tmp_path)}, home) == tmp_path / "tarry"
    assert directory({}, home) == Path("/home/me/.local/state/tarry")
    (tmp_path / "file").mkdir()
    (tmp_path / "file/tarry").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with announced("http://a", Path("template.yaml")):  # a directory that cannot be written stops nothing
        assert instance_of(Path("template.yaml")) is None
