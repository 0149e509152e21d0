"""The files of a function whose changes restart it."""

from pathlib import Path

from tarry.tools.local.reloading import stamps_of


def test_compiled_dot_and_backup_files_are_ignored(tmp_path: Path) -> None:
    for name in ("app.py", "lib/rules.json", "lib/__pycache__/x.pyc", ".git/index", "app.py~", "lib/.app.py.swp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    before = stamps_of(tmp_path)
    assert set(before) == {"app.py", "lib/rules.json"}
    (tmp_path / "lib/rules.json").write_text("12")
    assert {name for name, stamp in stamps_of(tmp_path).items() if stamp != before[name]} == {"lib/rules.json"}


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert stamps_of(tmp_path / "missing") == {}
