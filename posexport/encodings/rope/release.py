"""The version of transformers that wrote a configuration: 4 and 5 read some keys of rotations differently."""

from collections.abc import Mapping
from typing import Any


def release_of(config: Mapping[str, Any]) -> int | None:
    """The major version, for example 4 or 5; None where config.json does not say it."""
    version = config.get("transformers_version")
    major = version.partition(".")[0] if isinstance(version, str) else ""
    return int(major) if major.isdecimal() else None
