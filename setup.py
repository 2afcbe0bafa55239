"""Where packages are. posexport/models is a symbolic link to models, and a text file where a checkout has no links."""

from pathlib import Path

from setuptools import find_packages, setup

packages = find_packages(include=["posexport", "posexport.*"])
is_linked = Path("posexport/models").is_dir()
setup(
    packages=packages if is_linked else [*packages, "posexport.models"],
    package_dir={} if is_linked else {"posexport.models": "models"},
)
