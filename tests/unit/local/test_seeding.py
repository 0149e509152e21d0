"""Seed files: each mistake is one line that names the file, the line and the remedy."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.samples import SeedCall, read_seed, stored_values

PUT = '{"service": "ssm", "operation": "put_parameter", "parameters": {"Name": "/rate", "Value": "7"}}'


def test_a_line_is_a_call_with_the_operation_as_in_boto3_or_in_the_documentation_of_aws(tmp_path: Path) -> None:
    file = tmp_path / "seed.jsonl"
    file.write_text(f'\n{PUT}\n{{"service": "s3", "operation": "ListBuckets"}}\n')
    put, listed = read_seed(file)
    assert (put.where, put.service, put.operation) == (f"{file}, line 2", "ssm", "PutParameter")
    assert put.parameters == {"Name": "/rate", "Value": "7"}
    assert (listed.operation, listed.parameters) == ("ListBuckets", {})
    secret = SeedCall("", "secretsmanager", "CreateSecret", {"Name": "db", "SecretString": "s"})
    assert stored_values([put, listed, secret]) == {("ssm", "/rate"): "7", ("secretsmanager", "db"): "s"}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", ", line 2 is not JSON (Expecting property name"),
        ("[]", ", line 2 is a list, not a call such as {"),
        ('{"service": "s3", "operation": "put_object", "params": {}}', ", line 2 has params; a call has only service"),
        ('{"service": 3, "operation": "x"}', ", line 2: service must be a text; write a call such as {"),
        ('{"service": "s3", "operation": "x", "parameters": []}', ", line 2: parameters must be an object; write"),
        ('{"service": "dynamo", "operation": "x"}', ", line 2: boto3 has no service 'dynamo'; did you mean dynamodb?"),
        (
            '{"service": "s3", "operation": "putobjekt"}',
            ", line 2: s3 has no operation 'putobjekt'; did you mean put_object?",
        ),
        (
            '{"service": "s3", "operation": "put_object", "parameters": {"Bucket": 1}}',
            ', line 2: Missing required parameter in input: "Key"; Invalid type for parameter Bucket, value: 1',
        ),
    ],
)
def test_a_wrong_line_is_refused(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "seed.jsonl"
    file.write_text(f"{PUT}\n{line}\n")
    with pytest.raises(UsageError) as raised:
        read_seed(file)
    assert str(raised.value).startswith(f"{file}{text}")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory; give a file of JSON lines"):
        read_seed(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not text: byte 0 is not UTF-8"):
        read_seed(tmp_path / "binary")
