"""The command that installs an extra, for each origin of tarry that pip records (direct_url.json)."""

import subprocess
import sys
from pathlib import Path

import pytest

import tarry
from tarry.tools.common.installation import install_command


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ('{"url": "file:///src/my%20tarry", "dir_info": {}}', 'pip install "/src/my tarry[local,aws]"'),
        ('{"url": "file:///src/tarry", "dir_info": {"editable": true}}', 'pip install -e "/src/tarry[local,aws]"'),
        (
            '{"url": "file:///d/tarry-0.1.0-py3-none-any.whl", "archive_info": {}}',
            'pip install "/d/tarry-0.1.0-py3-none-any.whl[local,aws]"',
        ),
        (
            '{"url": "https://example.com/tarry.git", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
            'pip install "tarry[local,aws] @ git+https://example.com/tarry.git"',
        ),
        (None, 'pip install "tarry[local,aws]"'),
    ],
)
def test_it_names_where_tarry_came_from(
    origin: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tarry-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tarry\nVersion: 0.1.0\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("local,aws") == command


def test_it_knows_no_origin_of_a_package_that_is_only_on_the_path() -> None:
    code = "from tarry.tools.common.installation import install_command; print(install_command('cli'))"
    environment = {"PYTHONPATH": str(Path(tarry.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == 'pip install "tarry[cli]"\n'
