"""Print the unpacked sizes of the layers by part, and exit with 1 if one is over its limit.

python benchmarks/layer_size.py [directory of `sam build`]
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = {"TarryLayer": "layers/tarry", "PowertoolsLayer": "layers/powertools"}
LIMITS = {"TarryLayer": 1_700_000, "PowertoolsLayer": 15_000_000}
"""Bytes, as the sum of the sizes of the files. The bytecode of tarry has 0.9 to 1.1 MB, by Python."""


def sizes_of(layer: Path) -> Counter[str]:
    """Return the sizes of the parts of a built layer: the packages, or the modules and packages of a sole package.

    Bytecode is a part of its own, since its size depends on the machine that built the layer.
    """
    python = layer / "python"
    packages = [entry for entry in python.iterdir() if entry.is_dir()]
    top = packages[0] if len(packages) == 1 else python
    sizes: Counter[str] = Counter()
    for file in layer.rglob("*"):
        if file.is_file():
            part = file.relative_to(top).parts[0]
            named = "metadata and licences" if part.endswith(".dist-info") else part
            sizes["bytecode" if file.suffix == ".pyc" else named] += file.stat().st_size
    return sizes


def excesses(sizes: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield a line for each limit that is exceeded."""
    for layer, limit in LIMITS.items():
        if (total := sizes[layer].total()) > limit:
            yield f"{layer} has {total:,} bytes; the limit is {limit:,}"


def build(folder: Path) -> None:
    for layer, source in LAYERS.items():
        command = ["make", "--silent", f"build-{layer}", f"ARTIFACTS_DIR={folder / layer}"]
        subprocess.run(command, cwd=ROOT / source, check=True)


def main(folder: Path) -> int:
    sizes = {layer: sizes_of(folder / layer) for layer in LAYERS}
    for layer, parts in sizes.items():
        print(f"{layer:32}{parts.total():>12,} bytes of {LIMITS[layer]:,}")
        for part, size in parts.most_common():
            print(f"  {part:30}{size:>12,}")
    over = list(excesses(sizes))
    for line in over:
        print(f"Too large: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        sys.exit(main(Path(directory)))
