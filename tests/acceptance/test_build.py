"""The output of `sam build`, run by the runtime client of Lambda."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from benchmarks.layer_size import LAYERS, excesses, sizes_of
from tarry.tools.common.strip import NOT_DEPLOYED
from tests.acceptance.runtime import ROOT, Start, running
from tests.acceptance.runtime_api import FunctionError
from tests.processes import started
from tests.records import event, failed, record

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mypy_boto3_dynamodb import DynamoDBServiceResource
    from mypy_boto3_dynamodb.service_resource import Table

EVENTS = ROOT / "events"
IS_ROOT = os.geteuid() == 0  # who alone may hide /dev/shm
ORDERS = {"ORDERS_TABLE": "orders", "IDEMPOTENCY_TABLE": "idempotency", "ATTEMPTS_TABLE": "attempts"}
POWERTOOLS = (ROOT / "layers/powertools/requirements.txt").read_text()


@pytest.fixture
def orders(dynamodb: DynamoDBServiceResource) -> Table:
    """The tables of the orders function."""
    for name, key in (("idempotency", "id"), ("orders", "order_id")):
        table = dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        )
    return table


def sample(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_of(requirements: str) -> dict[str, str]:
    """Return the version of each distribution that is pinned, by its name with underscores."""
    pins = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)$", requirements, re.MULTILINE)
    return {name.replace("-", "_"): version for name, version in pins}


def test_the_tarry_layer_has_the_runtime_with_its_bytecode_and_nothing_for_a_developers_machine(
    build: Path, tmp_path: Path
) -> None:
    package = build / "TarryLayer" / "python" / "tarry"

    assert (package / "__init__.py").exists()
    assert (package / "py.typed").exists()
    assert not {path.name for path in package.iterdir()} & {*NOT_DEPLOYED}
    sources = list(package.rglob("*.py"))
    assert not [path for path in sources if ast.get_docstring(ast.parse(path.read_bytes()))]
    assert sorted(map(str, package.rglob("*.pyc"))) == sorted(cache_from_source(str(path)) for path in sources)
    compiled = Path(cache_from_source(str(package / "consumer.py"))).read_bytes()
    assert compiled[4:8] == b"\1\0\0\0"  # never compared with its source, whose times change in the layer
    assert b"/opt/python/tarry/consumer.py" in compiled

    def make(python: str, source: Path = ROOT / "layers/tarry") -> dict[str, bytes]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
        environment |= {"PYTHON": python, "PATH": path}
        command = ["make", "--silent", "build-TarryLayer", f"ARTIFACTS_DIR={tmp_path / python}"]
        subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
        return files_in(tmp_path / python)

    files = files_in(build / "TarryLayer")
    assert make(f"python{sys.version_info.major}.{sys.version_info.minor}") == files
    source, consumer = tmp_path / "part of the source", "python/tarry/consumer.py"
    for each in NOT_DEPLOYED:
        (source / "python/tarry" / each).mkdir(parents=True)
    (source / "python/tarry/tools/common").mkdir()
    for name in ("Makefile", "python/tarry/tools/common/strip.py", consumer):
        shutil.copy(ROOT / "layers/tarry" / name, source / name)
    assert make("3.99", source) == {consumer: files[consumer]}


def test_a_built_function_without_requirements_contains_only_its_own_modules(build: Path) -> None:
    for folder in (ROOT / "functions").iterdir():
        if not (folder / "requirements.txt").exists():
            built = {path.name for path in (build / f"{folder.name.title()}Function").iterdir()}
            own_tarry = {"tarry"} if folder.name in ("redrive", "guard") else set()  # with parts that the layer lacks
            assert built == {path.name for path in folder.glob("*.py")} | own_tarry
    for function, part in (("RedriveFunction", "failed"), ("GuardFunction", "guard")):
        package = {path.name for path in (build / function / "tarry").iterdir()}
        assert {part, "sqs"} <= package
        assert not package & {*NOT_DEPLOYED, "__pycache__"} - {part}


def test_the_layers_are_within_their_limits_of_size(build: Path) -> None:
    assert list(excesses({layer: sizes_of(build / layer) for layer in LAYERS})) == []
    too_large = {"TarryLayer": Counter(run=1_700_001), "PowertoolsLayer": Counter(pydantic=15_000_001)}
    assert list(excesses(too_large)) == [
        "TarryLayer has 1,700,001 bytes; the limit is 1,700,000",
        "PowertoolsLayer has 15,000,001 bytes; the limit is 15,000,000",
    ]


def test_the_powertools_layer_has_the_tested_versions_with_licences_and_bytecode_and_no_boto3(build: Path) -> None:
    python = build / "PowertoolsLayer" / "python"
    files = files_in(python)
    installed = dict(re.findall(r"^([\w.]+)-([\w.]+)\.dist-info/METADATA$", "\n".join(files), re.MULTILINE))
    tested = names_of((ROOT / "constraints.txt").read_text())
    assert names_of(POWERTOOLS) == installed, "layers/powertools/requirements.txt must pin all that it installs"
    assert {name: tested[name] for name in installed} == installed, "constraints.txt has other versions"
    assert all(any(name.startswith(each) and "LICENSE" in name for name in files) for each in installed)
    assert not [name for name in files if name.endswith((".pyi", "/RECORD")) or name.startswith("bin/")]
    assert "pydantic/py.typed" in files
    compiled = files[f"pydantic/__pycache__/main.{sys.implementation.cache_tag}.pyc"]
    assert compiled[4:8] == b"\1\0\0\0"  # never compared with its source, whose times change in the layer
    assert b"/opt/python/pydantic/main.py" in compiled


def test_requirements_of_a_function_are_built_for_lambda_on_any_machine_and_always_alike(tmp_path: Path) -> None:
    source = tmp_path / "function"
    source.mkdir()
    makefile = (
        (ROOT / "functions/orders/Makefile").read_text().replace("$(dir $(lastword $(MAKEFILE_LIST)))../..", "..")
    )
    (source / "Makefile").write_text(makefile)
    (tmp_path / "packages.mk").symlink_to(ROOT / "packages.mk")
    beside = ["data/my rates.csv", "pack/inner/module.py", "pack/tests/kept.py", "top list.json"]
    not_code = ["tests/test_app.py", "pack/__pycache__/module.cpython-39.pyc", "__pycache__/app.pyc", ".env"]
    for name in ("app.py", *beside, *not_code):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    (source / "linked.py").symlink_to(tmp_path / "shared.py")
    (tmp_path / "shared.py").write_text("SHARED = 1")
    (source / "requirements.txt").write_text("".join(re.findall(r"(?:pydantic-core|typing-ext.*)==.*\n", POWERTOOLS)))

    def make(folder: str, **variables: str) -> AbstractContextManager[subprocess.Popen[str]]:
        (tmp_path / folder).mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | variables
        environment["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        command = ["make", "build-OrdersFunction", f"ARTIFACTS_DIR={tmp_path / folder}"]
        return started(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    arch, machine = ("x86_64", "x86_64") if platform.machine() in ("arm64", "aarch64") else ("arm64", "aarch64")
    with (
        make("1", ARCH=arch, PYTHON=here) as one,
        make("2", ARCH=arch, PYTHON=f"python{here}") as two,
        make("3", ARCH="riscv") as unknown_machine,
        make("4", PYTHON="python3") as unknown_python,
    ):
        for process in (one, two):
            output, _ = process.communicate()
            assert process.returncode == 0, output
        assert 'ARCH is "riscv". It must be arm64 or x86_64.' in unknown_machine.communicate()[0]
        assert 'PYTHON is "python3". It must be 3.11, 3.12, 3.13 or 3.14.' in unknown_python.communicate()[0]
    first, again = (files_in(tmp_path / folder) for folder in "12")
    assert first == again
    assert {"app.py", "typing_extensions.py", *beside} <= first.keys()
    assert first["linked.py"] == b"SHARED = 1"
    assert not {*not_code, "Makefile", "requirements.txt"} & first.keys()
    assert f"pydantic_core/_pydantic_core.cpython-{here.replace('.', '')}-{machine}-linux-gnu.so" in first
    cache = f"__pycache__/typing_extensions.{sys.implementation.cache_tag}.pyc"
    assert b"/var/task/typing_extensions.py" in first[cache]


def test_a_built_function_reports_failed_messages_and_handles_the_next_batch_or_cannot_be_loaded(
    start: Start, aws: str, orders: Table
) -> None:
    event = sample("orders")
    with start("OrdersFunction", AWS_ENDPOINT_URL=aws, **ORDERS) as api:
        assert api.invoke(sample("all-well")) == {"batchItemFailures": []}
        written = {row["order_id"]: row["version"] for row in orders.scan()["Items"]}
        assert written == {"o-2001": 2, "o-2002": 1, "o-2003": 1}
        first = api.invoke(event)
        with pytest.raises(FunctionError, match="InvalidEvent"):
            api.invoke(sample("not-sqs"))
        assert api.invoke(sample("all-well")) == {"batchItemFailures": []}
    with start("OrdersFunction") as api, pytest.raises(FunctionError, match="ORDERS_TABLE"):
        api.invoke(sample("all-well"))  # it cannot be loaded
    order_of = {record["messageId"]: json.loads(record["body"]) for record in event["Records"]}
    failed = [order_of[failure["itemIdentifier"]] for failure in first["batchItemFailures"]]
    # The queues do not exist, so messages that would be dead-lettered are reported as failed.
    assert [(order["order"], order["version"]) for order in failed] == [
        ("o-1003", 4), ("o-1003", 3), ("o-1003", 2), ("o-1004", 1), ("o-1005", 2),
    ]  # fmt: skip


def test_a_failed_message_is_delayed_with_little_memory_no_place_to_write_and_bytecode_of_another_python(
    build: Path, lambda_packages: Path, tmp_path: Path, aws: str
) -> None:
    layer, function = tmp_path / "layer", tmp_path / "function"
    shutil.copytree(build / "TarryLayer", layer)
    for compiled in layer.rglob("*.pyc"):
        compiled.write_bytes(b"\0\0\r\n" + compiled.read_bytes()[4:])  # begins with the number of another Python
    function.mkdir()
    source = "from tarry import Fixed, consumer\n@consumer(backoff=Fixed(60))\ndef handler(message):\n    1 / 0\n"
    (function / "app.py").write_text(source)
    for path in (layer, function, *layer.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    sqs = boto3.client("sqs", "us-east-1", endpoint_url=aws, aws_access_key_id="x", aws_secret_access_key="x")
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="{}")
    received = sqs.receive_message(QueueUrl=url)["Messages"][0]
    message = record(received_at=time.time()) | {"receiptHandle": received["ReceiptHandle"]}
    mount = "mount -t tmpfs -o ro,size=4k none /dev/shm && " if IS_ROOT else ""
    through = [*(["unshare", "--mount"] if IS_ROOT else []), "sh", "-c", f'{mount}ulimit -v 262144 && exec "$@"', "sh"]
    settings = {"AWS_ENDPOINT_URL": aws, "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128", "HOME": "/proc/none"}

    with (
        (tmp_path / "log").open("wb") as log,
        running(function, [layer], lambda_packages, settings, log, through) as api,
    ):
        assert failed(api.invoke(event(message))) == ["m1"]
        assert api.process is not None
        status = Path(f"/proc/{api.process.pid}/status").read_text()
        assert int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) < 128 * 1024  # the most memory until now

    line = json.loads((tmp_path / "log").read_text())  # the only one
    assert (line["event"], line["error"]) == ("waiting_retry", "ZeroDivisionError: division by zero")
    assert 0 < line["delay"] <= 60
    assert "not_settled" not in line


def test_make_deploy_builds_for_lambda_and_then_runs_the_sam_of_the_environment() -> None:
    of_make = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # of the `make test` that runs this
    unset = {*of_make, "AWS_DEFAULT_REGION"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = ["make", "--dry-run", "deploy", "ARGS=--guided --profile dev"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    *before, deploy = result.stdout.splitlines()
    assert before[-1] == ".venv/bin/sam build"
    # The region is that of samconfig.toml or of the profile, and not the default of the Makefile.
    assert deploy == "env -u AWS_DEFAULT_REGION .venv/bin/sam deploy --guided --profile dev"
