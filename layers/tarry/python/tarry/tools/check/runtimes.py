"""Lambda's Python runtimes: their modules beside the standard library, and what that no longer has."""

import re
import sys

BROUGHT = frozenset(
    "awslambdaric bootstrap boto3 botocore dateutil jmespath pip runtime_client s3transfer simplejson six "
    "snapshot_restore_py urllib3".split()
)
"""The SDK with its dependencies, the runtime client with its own, and pip."""
BROUGHT_UNTIL_3_11 = frozenset({"pkg_resources", "setuptools"})

REMOVED = {
    (3, 12): frozenset({"asynchat", "asyncore", "distutils", "imp", "smtpd"}),
    (3, 13): frozenset(
        "aifc audioop cgi cgitb chunk crypt imghdr lib2to3 mailcap msilib nis nntplib ossaudiodev pipes sndhdr spwd "
        "sunau telnetlib uu xdrlib".split()
    ),
}
"""The modules that a version of Python removed from the standard library."""


Version = tuple[int, int]


def version_of(runtime: str | None) -> Version | None:
    """Return the version of a runtime such as ``python3.13``; None for another language, or if it is not known."""
    found = re.fullmatch(r"python(\d+)\.(\d+)", runtime or "")
    return (int(found[1]), int(found[2])) if found else None


def text_of(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def is_brought(module: str, version: Version) -> bool:
    """Whether the runtime has a top-level module: from the standard library, or beside it."""
    if is_removed(module, version):
        return False
    brought = BROUGHT if version >= (3, 12) else BROUGHT | BROUGHT_UNTIL_3_11
    return module in sys.stdlib_module_names or module in brought or module.startswith("_")


def is_removed(module: str, version: Version) -> bool:
    """Whether a version of Python, or one before it, removed a module from the standard library."""
    return any(module in gone and since <= version for since, gone in REMOVED.items())
