"""One model in several precisions in one directory, as transformers.js and other clients expect it.

``posexport.json`` describes the first precision and lists all files. Every other precision is a variant with a separate
manifest and proof: ``posexport.int8.json``, ``parity.int8.json``. Tokenizer and configuration are shared.
"""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from posexport.base.targets.precisions import PrecisionName
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MANIFEST, MODEL, Manifest


def variant_file(name: str, precision: PrecisionName | None) -> str:
    """The file name of a variant: ``parity.json`` -> ``parity.int8.json``; unchanged for the first precision (None)."""
    path = PurePosixPath(name)
    return name if precision is None else path.with_name(f"{path.stem}.{precision}{path.suffix}").as_posix()


def manifest_of(manifest: Manifest, precision: PrecisionName | None) -> str:
    """The name of the manifest for ``precision``; None is the first precision, which ``manifest`` describes.

    Raises:
        PosexportError: the bundle does not have that precision.
    """
    if precision is None or precision == manifest.precision:
        return MANIFEST
    if precision not in manifest.variants:
        known = ", ".join([manifest.precision, *manifest.variants])
        raise PosexportError(f"the bundle has no {precision}; it has: {known}")
    return variant_file(MANIFEST, precision)


def files_of(
    manifest: Manifest, variants: Sequence[Manifest], names: Collection[str], proofs: Sequence[str]
) -> list[set[str]]:
    """The files that each variant lists, out of ``names``: its graphs and proof, and all shared files.

    ``proofs``: names of files that every precision has separately.
    """

    def separate(described: Manifest, variant: PrecisionName | None) -> set[str]:
        graphs = tuple(spec.file for spec in described.parts) or (MODEL,)
        records = {variant_file(name, variant) for name in proofs}
        # external weights have the name of their graph and a suffix
        return {name for name in names if name in records or name.startswith(graphs)}

    separated = [separate(variant, variant.precision) for variant in variants]
    shared = set(names).difference(separate(manifest, None), *separated)
    return [shared | files for files in separated]
