"""One model in several precisions in one directory, as clients such as transformers.js want it.

``posexport.json`` describes the first precision, and lists the files of all. Every other one is a variant with a
manifest and a proof of its own, whose names contain the precision: ``posexport.int8.json``, ``parity.int8.json``.
Tokenizer and configuration are shared.
"""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from posexport.bundle.manifest import MANIFEST, MODEL, Manifest
from posexport.errors import PosexportError
from posexport.targets.precisions import PrecisionName


def variant_file(name: str, precision: PrecisionName | None) -> str:
    """The name of a variant's own file: ``parity.json`` -> ``parity.int8.json``; None: of the first precision."""
    path = PurePosixPath(name)
    return name if precision is None else path.with_name(f"{path.stem}.{precision}{path.suffix}").as_posix()


def manifest_of(manifest: Manifest, precision: PrecisionName | None) -> str:
    """The file of the manifest for ``precision``, where the first one says ``manifest``; None: the first precision.

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
    """What each variant of ``manifest`` lists of the files ``names``: its own, and those that no precision owns.

    ``proofs``: files that every precision has for itself.
    """

    def own(each: Manifest, variant: PrecisionName | None) -> set[str]:
        graphs = tuple(part.file for part in each.parts) or (MODEL,)
        records = {variant_file(name, variant) for name in proofs}
        # weights beside a graph have its name and a suffix
        return {name for name in names if name in records or name.startswith(graphs)}

    owned = [own(each, each.precision) for each in variants]
    shared = set(names).difference(own(manifest, None), *owned)
    return [shared | each for each in owned]
