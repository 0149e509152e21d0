"""The code and the layers of functions, as projects have them."""

import json
import os
import platform
import sys
import time
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from tarry.tools.local.project import note_builds, read_project
from tarry.tools.simulator.code import Code, CodeError
from tarry.tools.template import TemplateError, TemplateFunction, read_template
from tarry.tools.template.code import import_path, missing_code


def read(
    folder: Path, resources: dict[str, Any], name: str = "template.json", *, lenient: bool = False, **sections: Any
) -> TemplateFunction:
    """Return the function F of a template; other resources may be its layers. A setting that is None is left out."""
    function = resources["F"]
    settings = {"Handler": "app.handler", "Runtime": "python3.13", **function["Properties"]}
    function["Properties"] = {key: value for key, value in settings.items() if value is not None}
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"Resources": resources, **sections}))
    return read_template(path, lenient=lenient).functions["F"]


def serverless(code: str | None = None, **properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::Serverless::Function", "Properties": {"CodeUri": code, **properties}}


def plain(code: Any, **metadata: Any) -> dict[str, Any]:
    return {"Type": "AWS::Lambda::Function", "Properties": {"Code": code}, "Metadata": metadata}


def layer(place: str) -> dict[str, Any]:
    return {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": place}}


def write(folder: Path, *names: str, text: str = "") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def touch(path: Path, seconds: float) -> None:
    """Set the time of a file's last change, from now."""
    os.utime(path, (time.time() + seconds,) * 2)


@pytest.mark.parametrize(
    "function",
    [
        serverless(InlineCode="x = 1", Handler="index.handler"),
        plain({"ZipFile": "x = 1"}),
        plain({"ZipFile": {"Fn::Sub": "x = ${One}"}}),
    ],
)
def test_inline_code_is_in_the_file_that_lambda_gives_it(tmp_path: Path, function: dict[str, Any]) -> None:
    parameters = {"One": {"Type": "String", "Default": "1"}}
    found = read(tmp_path, {"F": function}, Parameters=parameters).code
    assert found is not None
    assert [(each.name, each.read_text()) for each in found.iterdir()] == [("index.py", "x = 1")]


@pytest.mark.parametrize("function", [serverless("f.zip"), plain("f.zip")])
def test_a_zip_file_is_unpacked(tmp_path: Path, function: dict[str, Any]) -> None:
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("app.py", "x = 1")
    found = read(tmp_path, {"F": function})
    assert found.code is not None
    assert (found.code / "app.py").read_text() == "x = 1"
    assert read(tmp_path, {"F": function}).code == found.code
    (tmp_path / "f.zip").write_text("no zip")
    mapping = {"FunctionName": {"Ref": "F"}, "EventSourceArn": "arn:aws:sqs:us-east-1:123456789012:q"}
    with pytest.raises(TemplateError, match=r"f\.zip cannot be unpacked"):
        read(tmp_path, {"F": function, "M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": mapping}})


@pytest.mark.parametrize("metadata", [{"aws:asset:path": "asset.1", "aws:asset:property": "Code"}, {}])
def test_the_assets_of_the_cdk_are_its_code_and_layers(tmp_path: Path, metadata: dict[str, str]) -> None:
    write(tmp_path, "cdk.out/asset.1/app.py", "cdk.out/asset.2/python/shared.py")
    place = {"S3Bucket": {"Fn::Sub": "assets-${AWS::AccountId}"}, "S3Key": "1.zip"}
    function = plain(place, **metadata)
    function["Properties"]["Layers"] = [{"Ref": "Shared"}]
    shared = {
        "Type": "AWS::Lambda::LayerVersion",
        "Properties": {"Content": place},
        "Metadata": {"aws:asset:path": "asset.2", "aws:asset:property": "Content"},
    }
    found = read(tmp_path, {"F": function, "Shared": shared}, "cdk.out/App.template.json")
    assert import_path(found) == [tmp_path / "cdk.out/asset.1", tmp_path / "cdk.out/asset.2/python"]


def test_an_asset_of_version_1_of_the_cdk_is_named_by_the_parameter_of_its_key(tmp_path: Path) -> None:
    digest = "0f3f2b3a5d1c7e1c" * 4
    key = {"Ref": f"AssetParameters{digest}S3VersionKey1A2B3C4D"}
    parts = [{"Fn::Select": [index, {"Fn::Split": ["||", key]}]} for index in (0, 1)]
    place = {"S3Bucket": {"Ref": "Bucket"}, "S3Key": {"Fn::Join": ["", parts]}}
    for made in (None, tmp_path / f"cdk.out/asset.{digest}"):
        if made is not None:
            write(made, "app.py")
        assert read(tmp_path, {"F": plain(place)}, "cdk.out/App.template.json").code == made


@pytest.mark.parametrize(
    "function",
    [
        serverless(PackageType="Image", Handler=None, Runtime=None),
        plain({"ImageUri": "1.dkr.ecr/x"}),
        plain({"S3Bucket": "b", "S3Key": "k"}),
        serverless("s3://b/k"),
    ],
)
def test_an_image_and_code_in_s3_are_not_here(tmp_path: Path, function: dict[str, Any]) -> None:
    found = read(tmp_path, {"F": function})
    assert found.code is None
    assert "cannot run here: it needs a local CodeUri and a Handler" in missing_code(found)


def test_the_build_runs_only_where_the_source_cannot(tmp_path: Path) -> None:
    def found(code: str = "src") -> TemplateFunction:
        return read(tmp_path, {"F": serverless(code)})

    write(tmp_path, "src/app.py", ".aws-sam/build/F/app.py")
    assert found().code == tmp_path / "src"
    write(tmp_path, "src/requirements.txt", text="# a comment\nboto3>=1\nno-such-library[x]==1  # why\n-r more.txt\n")
    assert found().code == tmp_path / ".aws-sam/build/F"
    assert found().build_reason == f"{tmp_path}/src/requirements.txt has no-such-library, not installed here"
    touch(tmp_path / "src/app.py", 9)
    assert found().build_reason.endswith(f"; {tmp_path}/src/app.py is newer than this build: run sam build")
    (tmp_path / "src/app.py").unlink()
    assert "does not have the handler app.handler" in found().build_reason
    assert "is not a directory" in found("gone").build_reason
    in_the_build = read(tmp_path, {"F": serverless("F")}, ".aws-sam/build/template.json")
    assert (in_the_build.code, in_the_build.build_reason) == (tmp_path / ".aws-sam/build/F", "")


def test_a_build_of_a_makefile_or_of_esbuild_runs_while_it_is_newer_than_its_source(tmp_path: Path) -> None:
    def run(method: str) -> tuple[Path | None, str]:
        """Return the code of the function as `tarry local` and `tarry invoke` run it, and their note."""
        notes: list[str] = []
        function = {**serverless("src"), "Metadata": {"BuildMethod": method}}
        assert read(tmp_path, {"F": function}).code == source, "tarry check reads the source"
        for place in (source / "app.py", source / "rules.json", template):
            touch(place, -9)
        for place, seconds in edited.items():
            touch(tmp_path / place, seconds)
        found = read_project(template, {}, None, None, notes.append).functions["F"]
        note_builds([found], notes.append)
        return found.code, " ".join(notes)

    source, build, template = tmp_path / "src", tmp_path / ".aws-sam/build/F", tmp_path / "template.json"
    write(tmp_path, "src/app.py", "src/rules.json", ".aws-sam/build/F/app.py", ".aws-sam/build/template.yaml")
    edited: dict[str, float] = {}
    for method in ("makefile", "esbuild"):
        note = f"F runs from {build}, because its build ({method}) is newer than {source} and template.json."
        assert run(method) == (build, note)
    assert run("python3.13") == (source, "")
    for name in ("src/app.py", "src/rules.json", "template.json"):
        edited = {name: 9}
        assert run("makefile") == (source, ""), name


@pytest.mark.parametrize(
    ("handler", "files", "problem"),
    [
        ("app.handler", ["src/app.py"], ""),
        ("pack/app.handler", ["src/pack/app.py"], ""),
        ("pack.handler", ["src/pack/__init__.py"], ""),
        ("shared.handler", ["src/x.txt", "layer/python/shared.py"], ""),
        ("json.handler", ["src/x.txt"], ""),  # it may be installed
        ("app.handler", [], "F: its CodeUri "),
        ("app.handler", ["src/app.ts"], "F: its handler app.handler is not in "),
    ],
)
def test_a_function_without_the_module_of_its_handler_has_no_code(
    tmp_path: Path, handler: str, files: list[str], problem: str
) -> None:
    write(tmp_path, *files)
    function = serverless("src", Handler=handler, Layers=[{"Ref": "L"}])
    found = missing_code(read(tmp_path, {"F": function, "L": layer("layer")}))
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("runtime", "method", "handler", "command"),
    [
        ("nodejs22.x", None, "dist/app.handler", "npm ci && npm run build"),
        ("nodejs22.x", "esbuild", "dist/app.handler", "sam build"),
        ("python3.13", "makefile", "gone.handler", "sam build"),
    ],
)
def test_a_function_that_needs_a_build_names_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, method: str | None, handler: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(), "src/app.ts")
    write(Path(), "package.json", text='{"scripts": {"build": "tsc"}}')
    function = serverless(".", Handler=handler, Runtime=runtime)
    function["Metadata"] = {"BuildMethod": method} if method else {}
    assert missing_code(read(Path(), {"F": function})).endswith(f"If a build makes it, run: {command}")
    function["Properties"]["CodeUri"] = "gone"
    text = f"gone is not a directory. If a build makes it, run: {command}"
    assert missing_code(read(Path(), {"F": function})).endswith(text)


def test_a_source_that_lacks_packages_names_the_command_that_installs_them(tmp_path: Path) -> None:
    write(tmp_path, "src/app.py")
    write(tmp_path, "src/requirements.txt", text="no-such-library")
    notes: list[str] = []
    note_builds([read(tmp_path, {"F": serverless("src")}, Transform="AWS::Serverless-2016-10-31")], notes.append)
    assert notes == [f"F: {tmp_path}/src/requirements.txt has no-such-library, not installed here: run sam build."]


def test_a_layer_that_the_template_does_not_define_is_named(tmp_path: Path) -> None:
    write(tmp_path, "src/app.py", text="import no_such_module")
    function = serverless("src", Layers=[{"Ref": "Gone"}, {"Ref": "Given"}])
    found = read(tmp_path, {"F": function}, lenient=True, Parameters={"Given": {"Type": "String"}})
    assert len(found.all_layers) == 1
    assert read_template(tmp_path / "template.json", lenient=True).left_out == (
        "F.Layers: Ref Gone cannot be resolved: it is neither a resource nor a parameter with a value",
    )


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_conditional_layers_are_resolved(tmp_path: Path, stage: str) -> None:
    write(tmp_path, "own/python/x.py", ".aws-sam/build/Built/python/x.py", "built/requirements.txt")
    layers = [
        {"Fn::If": ["IsDev", {"Ref": "Own"}, {"Ref": "AWS::NoValue"}]},
        {"Fn::ImportValue": "layer"},
        "arn:aws:lambda:us-east-1:1:layer:public:3",
    ]
    found = read(
        tmp_path,
        {"F": serverless("src", Layers=layers), "Own": layer("own"), "Built": layer("built")},
        Parameters={"Stage": {"Type": "String", "Default": stage}},
        Conditions={"IsDev": {"Fn::Equals": [{"Ref": "Stage"}, "dev"]}},
        Globals={"Function": {"Layers": {"Fn::If": ["IsDev", [{"Ref": "Built"}], []]}}},
    )
    assert found.layers == ((tmp_path / ".aws-sam/build/Built", tmp_path / "own") if stage == "dev" else ())


def test_nodejs_runs_from_its_build_if_the_source_has_no_javascript_or_lacks_a_package(tmp_path: Path) -> None:
    function = serverless("src", Handler="lib/app.handler", Runtime="nodejs22.x")
    write(tmp_path, "src/lib/app.ts", ".aws-sam/build/F/lib/app.js")
    found = read(tmp_path, {"F": function})
    assert (found.code, missing_code(found)) == (tmp_path / ".aws-sam/build/F", "")
    assert found.build_reason == f"{tmp_path}/src does not have the handler lib/app.handler"
    write(tmp_path, "src/lib/app.mjs", "node_modules/@shop/orders/package.json")
    write(tmp_path, "src/package.json", text='{"dependencies": {"@shop/orders": "1", "axios": "^1"}}')
    touch(tmp_path / "src/lib/app.mjs", -9)
    found = read(tmp_path, {"F": function})
    assert found.build_reason == f"{tmp_path}/src/package.json has axios, not installed here"
    write(tmp_path, "src/node_modules/axios/package.json")
    assert read(tmp_path, {"F": function}).code == tmp_path / "src"


def test_other_runtimes_do_not_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "src/index.js")
    for runtime in ("java21", "provided.al2023", "dotnet8", "go1.x", "ruby3.4"):
        found = read(tmp_path, {"F": serverless("src", Runtime=runtime)})
        assert missing_code(found) == f"F cannot run here: its runtime is {runtime}; tarry runs Python and Node.js"
    script = read(tmp_path, {"F": serverless("src", Handler="index.handler", Runtime="nodejs22.x")})
    monkeypatch.setattr("tarry.tools.template.code.node", lambda: None)
    assert missing_code(script).endswith("there is no node on the PATH: install Node.js")


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, None),
        ({"LogFormat": "Text", "LogGroup": {"Ref": "Gone"}}, None),
        ({"LogFormat": "JSON"}, "INFO"),
        ({"LogFormat": "JSON", "ApplicationLogLevel": "DEBUG"}, "DEBUG"),
    ],
)
def test_the_log_level_is_that_of_the_logging_config(tmp_path: Path, config: dict[str, Any], level: str | None) -> None:
    assert read(tmp_path, {"F": serverless(LoggingConfig=config)}).log_level == level


HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "aarch64" if platform.machine() != "aarch64" else "x86_64"
ARCH = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
TAG = f"cpython-{HERE.replace('.', '')}"
ELF_OF_ANOTHER_MACHINE = b"\x7fELF" + bytes(14) + b"\xf3\x00"


@pytest.mark.parametrize(
    ("modules", "built_for", "options"),
    [
        ([f"core.{TAG}-{OTHER}-linux-gnu.so"], f"{OTHER} and Python {HERE}", f"ARCH={ARCH}"),
        ([f"core.cpython-27-{platform.machine()}-linux-gnu.so"], f"{platform.machine()} and Python 2.7", "PYTHON="),
        (["core.abi3.so"], "another machine", f"ARCH={ARCH}"),
        ([f"core{EXTENSION_SUFFIXES[0]}", f"core.cpython-27-{OTHER}-linux-gnu.so", "libssl.so", "a.so.1"], "", ""),
        ([], "", ""),
    ],
)
def test_builds_whose_modules_this_python_cannot_import_are_left_out_and_a_note_names_the_remedy(
    tmp_path: Path, modules: list[str], built_for: str, options: str
) -> None:
    write(tmp_path, "src/app.py", "layer/requirements.txt", "vendored/python/pure.py")
    write(tmp_path, "src/requirements.txt", text="no-such-library")
    write(tmp_path, ".aws-sam/build/F/app.py", ".aws-sam/build/L/python/pure.py")
    for place in ("vendored/python", ".aws-sam/build/F", ".aws-sam/build/L/python"):
        for name in modules:
            (tmp_path / place / "pack").mkdir(exist_ok=True)
            (tmp_path / place / "pack" / name).write_bytes(ELF_OF_ANOTHER_MACHINE)
    function = serverless("src", Layers=[{"Ref": "L"}, {"Ref": "V"}])
    found = read(tmp_path, {"F": function, "L": layer("layer"), "V": layer("vendored")})
    notes: list[str] = []
    note_builds([found, found], notes.append)
    if built_for:
        assert (found.code, found.layers) == (tmp_path / "src", (tmp_path / "layer",))
        places = (tmp_path / ".aws-sam/build/F", tmp_path / ".aws-sam/build/L", tmp_path / "vendored")
        assert [text.partition(" is built for ")[0] for text in notes] == [f"Build left out: {each}" for each in places]
        assert all(f"built for {built_for}, and this is Python {HERE} on {platform.machine()}. " in t for t in notes)
        assert all(f"to build for this machine: make build {options}" in text for text in notes)
    else:
        assert found.code == tmp_path / ".aws-sam/build/F"
        assert found.layers == (tmp_path / ".aws-sam/build/L", tmp_path / "vendored")
        assert not found.foreign


def test_the_sandbox_names_the_build_that_is_left_out_if_an_import_fails(tmp_path: Path) -> None:
    write(tmp_path, "src/app.py", text="import only_in_the_layer")
    write(tmp_path, f"layer/python/core.cpython-27-{OTHER}-linux-gnu.so")
    function = read(tmp_path, {"F": serverless("src", Layers=[{"Ref": "L"}]), "L": layer("layer")})
    with pytest.raises(CodeError, match=rf"only_in_the_layer'\. Build left out: .*/layer is built for {OTHER} and"):
        Code(function, {}).load()
