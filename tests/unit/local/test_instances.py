"""The files by which commands find the `tarry local` that runs a template."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tarry.tools.local.aws.client import endpoint_of
from tarry.tools.local.instances import announced, directory, instance_here, instance_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tarry").mkdir()
    return tmp_path / "tarry"


def write(folder: Path, process_id: int, template: Path, url: str, began_at: float) -> None:
    fields = {"url": url, "template": str(template.resolve()), "process_id": process_id, "began_at": began_at}
    (folder / f"local-{process_id}.json").write_text(json.dumps(fields))


def test_a_running_instance_is_found_by_its_template_until_it_ends(folder: Path) -> None:
    assert instance_here() is None, "there is no template"
    Path("template.yml").touch()
    with announced("http://127.0.0.1:5000", Path("template.yml")):
        found = instance_here()
        assert found is not None
        assert found.url == "http://127.0.0.1:5000"
        assert instance_of(Path("other/template.yml")) is None
        assert endpoint_of(None, {}, running=instance_here) == "http://127.0.0.1:5000"
        assert endpoint_of("http://a", {}, running=instance_here) == "http://a"
        assert endpoint_of(None, {"AWS_ENDPOINT_URL": "http://b"}, running=instance_here) == "http://b"
    assert instance_here() is None
    assert list(folder.iterdir()) == []


def test_the_last_that_started_is_found_and_none_whose_process_was_killed(folder: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    template = Path("template.yaml")
    write(folder, killed.pid, template, "http://killed", 3.0)
    write(folder, os.getppid(), template, "http://first", 1.0)
    write(folder, os.getpid(), template, "http://last", 2.0)
    (folder / "local-x.json").write_text("{}")
    found = instance_of(template)
    assert found is not None
    assert found.url == "http://last"
    with announced("http://new", template):
        assert not (folder / f"local-{killed.pid}.json").exists()
        assert (folder / f"local-{os.getppid()}.json").exists()


def test_the_files_are_in_the_runtime_or_state_directory_of_the_user(tmp_path: Path) -> None:
    runtime, home = {"XDG_RUNTIME_DIR": str(tmp_path)}, Path("/home/me")
    assert directory({**runtime, "XDG_STATE_HOME": "/none"}, home) == tmp_path / "tarry"
    assert directory({"XDG_RUNTIME_DIR": "/none", "XDG_STATE_HOME": str(tmp_path)}, home) == tmp_path / "tarry"
    assert directory({}, home) == Path("/home/me/.local/state/tarry")


def test_a_directory_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file/tarry").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with announced("http://a", Path("template.yaml")):
        assert instance_of(Path("template.yaml")) is None
