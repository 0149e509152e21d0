"""Where requests go, by the endpoint URL of the client."""

import pytest

from tarry.tools.common.places import is_aws, place_text

AWS = [
    "https://sqs.us-east-1.amazonaws.com",
    "http://sqs.us-east-1.amazonaws.com",
    "https://sqs.cn-north-1.amazonaws.com.cn",
    "https://sqs.eusc-de-east-1.amazonaws.eu",
    "https://sqs.us-iso-east-1.c2s.ic.gov",
    "https://sqs.eu-west-1.api.aws",
    "https://vpce-1a2b.sqs.eu-west-1.vpce.amazonaws.com",
    "https://10.0.3.7",
    "https://[fd00::7]",
    "https://sqs.internal",
    "https://sqs",
    "http://8.8.8.8",
    "http://134744072",
    "http://localhost.example.com",
    "http://localhost@sqs.us-east-1.amazonaws.com",
]
LOCAL = [
    "http://127.0.0.1:4576",
    "https://127.0.0.1:4576",
    "https://localhost:4566",
    "http://LOCALHOST.:4566",
    "http://sqs.localhost:4566",
    "http://[::1]:4576",
    "http://[::ffff:127.0.0.1]:4576",
    "http://0.0.0.0:4576",
    "http://172.17.0.2:4566",
    "http://localstack:4566",
    "http://host.docker.internal:4566",
]


@pytest.mark.parametrize("url", [*AWS, *LOCAL])
def test_only_loopback_and_private_hosts_over_plain_http_are_local(url: str) -> None:  # SPEC M3
    assert is_aws(url) is (url in AWS)


def test_a_place_is_named_by_its_account_and_region_or_by_its_address() -> None:  # SPEC M3
    assert place_text(AWS[0], "123456789012", "us-east-1") == "AWS 123456789012 us-east-1"
    assert place_text("http://user:secret@127.0.0.1:4576/") == "local 127.0.0.1:4576"
