"""The commands that publish a release, as a text: a person types them, since publishing needs accounts."""

from collections.abc import Sequence
from pathlib import Path

from release.artifacts import Layer

PUBLISHING = """\

tarry {version} is in {folder}, and its changes are the last commit of {branch}. Nothing is published.
{notes}
1. Push the commit and a tag. The workflow release.yml builds the same wheel and sdist and uploads them to PyPI:

    git push origin {branch}
    git tag --annotate v{version} --message "tarry {version}"
    git push origin v{version}

   Without GitHub, upload them with a token of PyPI:

    python -m twine upload {folder}/tarry-{version}.tar.gz {folder}/tarry-{version}-*.whl

2. Publish the layers in each region of your AWS account, for everyone; the ARNs are printed:

    publish() {{
        region=$1 layer=$2 python=$3; shift 3
        number=$(aws lambda publish-layer-version --region "$region" --layer-name "$layer" \\
            --zip-file "fileb://{folder}/$layer-{version}.zip" --description "tarry {version}" \\
            --compatible-runtimes "$python" --compatible-architectures "$@" --query Version --output text) &&
        aws lambda add-layer-version-permission --region "$region" --layer-name "$layer" --version-number "$number" \\
            --statement-id public --principal "*" --action lambda:GetLayerVersion --query Statement --output text
    }}
    for region in $(aws ec2 describe-regions --query "Regions[].RegionName" --output text); do
{layers}
    done

To undo the release before anything is pushed: git reset --hard HEAD~1 && rm -r {folder}
"""


def publishing(
    version: str, folder: Path, branch: str, address: str, layers: Sequence[Layer], missing: Sequence[str]
) -> str:
    """Return what to type to publish a release.

    Args:
        version: The version, such as 0.2.0.
        folder: The directory of the files, from the root of the repository.
        branch: The branch that has the commit of the release.
        address: The address of the project, with the top-level domain .example if it has none yet.
        layers: The layers, whose files are in the directory.
        missing: The Pythons that this machine lacks, for which no layer was built and no wheel tried.
    """
    notes = []
    if ".example" in address:
        notes.append(
            f"Do not publish it yet: the wheel names {address} as the project's address. Undo the release (below), "
            "name the address in pyproject.toml and the contact in SECURITY.md, run make docs, commit, and make the "
            "release again."
        )
    if missing:
        notes.append(
            f"No layer was built, and the wheel was not tried, for Python {' and '.join(missing)}, which this machine "
            "does not have."
        )
    lines = [
        f'        publish "$region" {each.name} python{each.python} {" ".join(each.architectures)}' for each in layers
    ]
    text = "".join(f"\n{note}\n" for note in notes)
    return PUBLISHING.format(version=version, folder=folder, branch=branch, notes=text, layers="\n".join(lines))
