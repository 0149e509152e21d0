"""`tarry init`: what it prints and refuses. tests/acceptance/test_init.py uses the project that it makes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tarry.failed.usage import UsageError
from tarry.tools.cli.app import app
from tarry.tools.scaffold.files import TEMPLATES, names_of, project_files, write_project
from tarry.tools.template import read_template
from tarry.tools.template.document import load_document

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str, exits: int = 0) -> Result:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert result.exit_code == exits, result.output
    return result


def refusal(*arguments: str) -> str:
    result = init(*arguments, exits=2)
    assert result.stdout == ""
    return result.stderr


def test_it_ends_with_the_commands_to_type(folder: Path) -> None:
    result = init("shop/orders")
    head, _, commands = result.stdout.partition("\n\nNext:\n")
    assert head.startswith(f"Created a project in {folder / 'shop' / 'orders'}:\n")
    typed = [line.partition("#")[0].strip() for line in commands.splitlines()]
    assert typed == ["cd shop/orders", "make test", "make run"]
    assert max(map(len, result.stdout.splitlines()[1:])) < 80
    listed = re.findall(r"^  ([\w./-]+)|, ([\w.-]+)$", head, re.MULTILINE)
    assert all((folder / "shop" / "orders" / (first or last)).exists() for first, last in listed)


def test_the_current_directory_is_the_default_keeps_its_other_files_and_gives_the_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = folder / "My_Shop"
    (project / "tests").mkdir(parents=True)
    (project / "tests" / "test_mine.py").write_text("mine = True\n")
    monkeypatch.chdir(project)
    printed = init().stdout
    assert "cd " not in printed
    assert "queue my-shop," in printed
    assert [*read_template(project / "template.yaml").queues] == ["my-shop", "my-shop-dlq"]
    assert (project / "functions" / "my_shop" / "app.py").exists()
    assert (project / "tests" / "test_mine.py").read_text() == "mine = True\n"


@pytest.mark.parametrize(
    ("directory", "queue", "module", "prefix", "title"),
    [
        ("invoices", "invoices", "invoices", "Invoices", "Invoices"),
        ("my-shop", "my-shop", "my_shop", "MyShop", "My shop"),
        ("My Shop.fifo", "my-shop-fifo", "my_shop_fifo", "MyShopFifo", "My shop fifo"),
        ("cafésToday2", "cafes-today2", "cafes_today2", "CafesToday2", "Cafes today2"),
        ("2024_invoices", "invoices", "invoices", "Invoices", "Invoices"),
        ("lambda", "lambda-queue", "lambda_queue", "LambdaQueue", "Lambda queue"),  # reserved in Python
        ("On", "on-queue", "on_queue", "OnQueue", "On queue"),  # a boolean in YAML
        ("a" * 75 + "-bc", "a" * 75, "a" * 75, "A" + "a" * 74, "A" + "a" * 74),
        ("注文-42", "orders", "orders", "Orders", "Orders"),
        ("", "orders", "orders", "Orders", "Orders"),  # the root directory
    ],
)
def test_the_names_follow_from_the_directory_and_are_valid(
    directory: str, queue: str, module: str, prefix: str, title: str
) -> None:
    assert names_of(directory) == (queue, module, prefix, title)


def test_only_the_names_differ_between_projects() -> None:
    invoices, orders = (project_files(names_of(name), 13) for name in ("my-invoices", "orders"))
    assert len(invoices) == len(orders)
    assert {path.name for path in invoices.keys() - orders.keys()} == {"app.py", "requirements.txt", "my-invoices.json"}
    own = [content.decode() for path, content in invoices.items() if not path.is_relative_to("layers")]
    assert not re.findall(r"(?i)orders\w+|my.?queue", "\n".join(own))
    assert "functions/my_invoices/app.py" in invoices[Path("README.md")].decode()
    template = " ".join(orders[Path("template.yaml")].decode().split())  # a name in one form reads well too
    assert "replace Orders in logical ids, orders in names and tags, and # orders in the directory" in template
    assert "\n\nConditions:" in orders[Path("template.yaml")].decode()


@pytest.mark.parametrize("existing", [["README.md", "layers/tarry/python/mine.py"], ["tests"], ["functions"]])
def test_files_in_the_way_are_named_and_nothing_is_changed(folder: Path, existing: list[str]) -> None:
    for name in existing:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    before = sorted(folder.rglob("*"))
    named = " and ".join("layers/tarry" if name.startswith("layers/") else name for name in existing)
    why = f"{folder} already has {named}, and tarry init overwrites nothing"
    assert refusal(".") == f"tarry: {why}; name a new directory: tarry init DIR\n"
    assert sorted(folder.rglob("*")) == before
    assert all((folder / name).read_text() == "mine" for name in existing)


def test_a_file_is_not_a_directory(folder: Path) -> None:
    (folder / "notes").write_text("mine")
    for name in ("notes", "notes/orders"):
        assert refusal(name) == "tarry: notes is not a directory; name another one: tarry init DIR\n"


def test_a_project_that_cannot_be_finished_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tests").mkdir()
    opened: list[Path] = []
    real = Path.open

    def disk_with_room_for_thirty_files(path: Path, *arguments: Any) -> Any:
        opened.append(path)
        if len(opened) > 30:
            raise OSError(28, "No space left on device", str(path))
        return real(path, *arguments)

    files = project_files(names_of("orders"), 13)
    monkeypatch.setattr(Path, "open", disk_with_room_for_thirty_files)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\), so no project was made; "):
        write_project(Path(), files)
    assert [each.name for each in folder.rglob("*")] == ["tests"]


def test_a_directory_without_write_permission_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: Any) -> None:  # the tests may run as root, which may write everywhere
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    why = f"{folder / 'orders'} cannot be written (Permission denied), so no project was made"
    assert refusal("orders") == f"tarry: {why}; name a directory that you can write to: tarry init DIR\n"


@pytest.mark.parametrize(("minor", "named"), [(10, "3.11"), (11, "3.11"), (12, "3.12"), (14, "3.14"), (15, "3.14")])
def test_the_project_names_the_python_that_made_it_if_lambda_and_tarry_support_it(minor: int, named: str) -> None:
    files = project_files(names_of("orders"), minor)
    own = [content.decode() for path, content in files.items() if not path.is_relative_to("layers/tarry/python")]
    versions = re.findall(r"(?:python|Python )(3\.\d+)\b(?!\")", "\n".join(own))
    assert set(versions) == {named}
    assert f"Runtime: python{named}\n" in files[Path("template.yaml")].decode()


def test_the_consumer_of_a_project_has_the_same_block_as_orders_of_this_repository() -> None:
    """The settings are the same, but for their values; a project has no tables and no metrics, and may defer."""
    ours, theirs = (load_document(path / "template.yaml") for path in (ROOT, TEMPLATES))
    block = {name: each for name, each in ours["Resources"].items() if name.startswith("Orders")}
    del block["OrdersTable"], block["OrdersIdempotencyTable"]
    del block["OrdersFunction"]["Metadata"]
    del block["OrdersFunction"]["Properties"]["Environment"]
    del block["OrdersFunction"]["Properties"]["Events"]["Orders"]["Properties"]["MaximumBatchingWindowInSeconds"]
    block["OrdersRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"][-3:] = []
    own = theirs["Resources"]["MyQueueRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    assert own.pop(2)["Sid"] == "Defer"  # here, orders does not defer
    expected = shape({re.sub("^Orders", "MyQueue", name): each for name, each in block.items()})
    assert shape({name: each for name, each in theirs["Resources"].items() if name.startswith("MyQueue")}) == expected
    assert {*ours["Parameters"]} - {*theirs["Parameters"]} == {"AllowPrivateAddresses", "OutageGuard"}
    del ours["Conditions"]["HasGuard"]
    assert theirs["Conditions"] == ours["Conditions"]
    shared = ours["Globals"]["Function"]
    del shared["Environment"]
    shared["Layers"].pop()  # Powertools, which writes the metrics
    assert theirs["Globals"] == ours["Globals"]


def shape(value: Any) -> Any:
    """Return the keys of nested maps, and the lengths of lists."""
    if isinstance(value, dict):
        return {"MyQueue" if key == "Orders" else key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else None


def test_the_layer_of_a_project_is_that_of_this_repository() -> None:
    assert (TEMPLATES / "layers/tarry/Makefile").read_bytes() == (ROOT / "layers/tarry/Makefile").read_bytes()
    assert (TEMPLATES / "layers/tarry/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    theirs, ours = (
        tomllib.loads(path.read_text())
        for path in (TEMPLATES / "layers/tarry/pyproject.toml-tpl", ROOT / "pyproject.toml")
    )
    for name in (
        "LICENSE",
        "Makefile",
        "pyproject.toml",
    ):  # so pip installs the layer as that of a project
        made = project_files(names_of("project"), 13)[Path("layers", "tarry", name)]
        assert (ROOT / "layers" / "tarry" / name).read_bytes() == made
    assert theirs["build-system"] == ours["build-system"]
    ours["project"]["dynamic"].remove("readme")  # for an index; the copy in a project has none
    assert theirs["project"].items() <= ours["project"].items()
    assert {"scripts", "entry-points", "optional-dependencies"} <= theirs["project"].keys()
