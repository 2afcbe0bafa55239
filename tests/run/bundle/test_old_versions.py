"""Bundles that earlier versions wrote still load, and compute what they were proven to (docs/compatibility.md)."""

import json
from pathlib import Path

import pytest

import posexport
from posexport.run.bundle.manifest import FORMAT_VERSION, MANIFEST
from posexport.version import VERSION

VERSIONS = Path(__file__).parent / "versions"
BUNDLES = sorted(path.parent for path in VERSIONS.glob(f"*/*/{MANIFEST}"))


def test_this_version_is_kept_and_every_format() -> None:
    assert {path.parent.name for path in BUNDLES} >= {VERSION}
    formats = {json.loads((path / MANIFEST).read_bytes())["format_version"] for path in BUNDLES}
    assert FORMAT_VERSION in formats
    for version in VERSIONS.iterdir():
        assert len([path for path in BUNDLES if path.parent == version]) >= 6


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_old_bundle_is_right(bundle: Path) -> None:
    session = posexport.load(bundle)
    assert session.self_check()
    if session.manifest.limits.kv_cache:
        prompts = {"decoder_prompts": [[1]]} if session.manifest.parts else {}
        done = session.generate([[1, 2, 3]], max_new_tokens=3, **prompts)
        assert len(done.completions[0].tokens) <= 3
