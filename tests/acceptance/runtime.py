"""Processes that run a built function as Lambda does, with an import path like that of Lambda."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from samtranslator.yaml_helper import yaml_parse

from tests.acceptance.runtime_api import FakeRuntimeApi
from tests.leftovers import MARK
from tests.processes import end

ROOT = Path(__file__).parents[2]
SAM = Path(sysconfig.get_path("scripts")) / "sam"

Start = Callable[..., AbstractContextManager[FakeRuntimeApi]]
"""Start a built function by name, with keyword arguments as environment variables."""


@contextmanager
def running(
    function: Path,
    layers: Sequence[Path],
    lambda_packages: Path,
    environment: dict[str, str],
    output: IO[bytes] | None = None,
    through: Sequence[str] = (),
) -> Iterator[FakeRuntimeApi]:
    """Start `app.handler` of the folder `function`, ``through`` another command; yield the API that invokes it.

    Its log goes to `output`.
    """
    paths = [function, *(layer / "python" for layer in layers), lambda_packages]
    with FakeRuntimeApi() as api:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_LAMBDA_RUNTIME_API": api.address,
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": "local",
            "AWS_LAMBDA_LOG_FORMAT": "JSON",
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "LAMBDA_TASK_ROOT": str(function),
            MARK: os.environ.get(MARK, ""),
            **environment,
        }
        # -S: without site-packages, so that packages missing in the build are not found here.
        command = [*through, sys.executable, "-S", "-m", "awslambdaric", "app.handler"]
        process = api.process = subprocess.Popen(
            command, env=env, cwd=function, start_new_session=True, stdout=output, stderr=output
        )
        try:
            yield api
        finally:
            end(process)


def layers_of(build: Path, function: str) -> list[Path]:
    """Return the folders of the layers that a function has in the built template."""
    template = yaml_parse((build / "template.yaml").read_text())
    of_all = template["Globals"]["Function"]["Layers"]
    layers = [*of_all, *template["Resources"][function]["Properties"].get("Layers", [])]
    return [build / str(layer["Ref"]) for layer in layers]


def sam_build(folder: Path) -> None:
    """Build the template into a folder, for the Python and the architecture that run here."""
    command = [str(SAM), "build", "--build-dir", str(folder), "--no-cached"]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
        "ARCH": {"aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
        "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
        "SAM_CLI_TELEMETRY": "0",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def link_packages(target: Path, *distributions: str) -> None:
    """Link installed distributions and their requirements into the folder `target`."""
    done: set[str] = set()
    todo = list(distributions)
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            if file.parts[0] not in ("..", "__pycache__"):
                source, link = Path(str(distribution.locate_file(file.parts[0]))), target / file.parts[0]
                if not link.exists():
                    link.symlink_to(source)
        todo += [required_name(line) for line in distribution.requires or [] if "extra ==" not in line]


def required_name(requirement: str) -> str:
    """Return the name in a requirement: `urllib3` in `urllib3!=2.2.0,<3; python_version >= "3.10"`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return name[0]
