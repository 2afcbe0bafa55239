"""Where packages are. posexport/models is a symbolic link to models, and a text file where a checkout has no links."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

# pip reads requires-python of a checkout after the requirements of extras, and fails at those first
if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(f"posexport needs Python 3.11 or newer, this is {sys.version.split()[0]}")
packages = find_packages(include=["posexport", "posexport.*"])
is_linked = Path("posexport/models").is_dir()
setup(
    packages=packages if is_linked else [*packages, "posexport.models"],
    package_dir={} if is_linked else {"posexport.models": "models"},
)
