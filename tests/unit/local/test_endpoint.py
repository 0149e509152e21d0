"""The SQS endpoint and client of a command, which use AWS only on request."""

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import endpoint_of, sqs_client

LOCAL = "http://127.0.0.1:4576"


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, LOCAL),
        (None, {"AWS_PROFILE": "production", "AWS_REGION": "eu-west-1"}, LOCAL),
        (None, {"AWS_ENDPOINT_URL": ""}, LOCAL),
        (None, {"AWS_ENDPOINT_URL": "http://localhost:4566/"}, "http://localhost:4566"),
        (None, {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_SQS": "http://b"}, "http://b"),
        ("http://c", {"AWS_ENDPOINT_URL_SQS": "http://b"}, "http://c"),
    ],
)
def test_the_endpoint_is_the_given_one_or_tarry_local(
    given: str | None, environment: dict[str, str], expected: str
) -> None:
    assert endpoint_of(given, environment) == expected


@pytest.mark.parametrize("wrong", ["localhost:4576", "ftp://localhost", "http://", "x"])
def test_an_invalid_url_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match=f"is not an endpoint URL; an example is {LOCAL}$"):
        endpoint_of(wrong, {})


def test_no_profile_is_read_for_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "not-to-be-found")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    client = sqs_client(LOCAL)
    assert client.meta.endpoint_url == LOCAL
    assert client._request_signer._credentials.access_key == "local"


def test_an_emulator_gets_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "000000000042")  # LocalStack uses it as the account
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert sqs_client(LOCAL)._request_signer._credentials.access_key == "000000000042"


@pytest.mark.parametrize("url", [None, "https://sqs.eu-west-1.amazonaws.com"])
def test_for_aws_a_configured_endpoint_is_ignored(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", LOCAL)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert sqs_client(url).meta.endpoint_url == "https://sqs.eu-west-1.amazonaws.com"
