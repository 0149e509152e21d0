"""Build the site of docs/ for the version of the package, in a folder of that version beside those of other versions.

`make site` runs it. To publish: copy build/site to the web server, and leave the other versions there.
"""

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

import tarry

HERE = Path(__file__).parent
LINK = '<a href="{0}/README.html">tarry {0}</a>\n'
TO_NEWEST = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/README.html">' + LINK
VERSIONS = '<!doctype html><html lang="en"><title>tarry: versions</title><h1>tarry: versions</h1>\n<ul>\n{}</ul>\n'


def main(site: Path) -> int:
    """Build the site; a warning fails, since it is a link or a reference that leads nowhere."""
    version = tarry.__version__
    failed = sphinx(["-q", "-E", "-W", "--keep-going", "-c", str(HERE), str(HERE.parent), str(site / version)])
    versions = sorted((path.name for path in site.iterdir() if path.is_dir()), key=_numbers, reverse=True)
    items = "".join(f'<li><a href="{each}/README.html">{each}</a></li>\n' for each in versions)
    (site / "versions.html").write_text(VERSIONS.format(items))
    (site / "index.html").write_text(TO_NEWEST.format(versions[0]))
    if not failed:
        sys.stdout.write(f"The site of version {version} is complete: {site / 'index.html'}\n")
    return failed


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
