"""The result of a conversion."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from posexport.base.system.files import size_text
from posexport.run.bundle.manifest import Manifest

if TYPE_CHECKING:
    from posexport.proof.report.report import Report
    from posexport.sources.load_options import Shown


class MissedError(Exception):
    """Parity was missed: leaves the staging block, so that nothing gets into place."""

    def __init__(self, report: "Report") -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True)
class Failed:
    """A conversion that failed with ``error``, where another one may not.

    Attributes:
        shown: the axes as far as they are known now; None: the KV cache is in the way that a decoder gets by default.
        remarks: what to say of each axis where the other conversion is the one that is written.
        reasons: what to say of this one where the other fails too.
    """

    error: Exception
    shown: "Shown | None" = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    reasons: Sequence[str] = ()


class Written(NamedTuple):
    """What was written for one precision: its manifest, before files are listed, and its proof if it was proven."""

    manifest: Manifest
    report: "Report | None"

    @property
    def verdict(self) -> str:
        """The proof in words, as `Conversion.verdict` has it."""
        from posexport.proof.report.record import verdict

        return verdict(self.report).words


@dataclass(frozen=True)
class Conversion:
    """The result of `posexport.convert`.

    Attributes:
        output: the bundle's directory.
        manifest: what the bundle is; None where parity was missed and nothing was written.
        report: the proof; None where nothing was verified.
        remarks: sentences about the source and the proof, as the command line prints them on stderr.
        variants: manifest and proof of every further precision, by its name.
    """

    output: Path
    manifest: Manifest | None
    report: "Report | None"
    remarks: tuple[str, ...] = ()
    variants: "dict[str, Written]" = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether every proof passed; also where no proof was requested."""
        reports = [self.report, *(variant.report for variant in self.variants.values())]
        return all(report is None or report.passed for report in reports)

    @property
    def verdict(self) -> str:
        """The proof in words: ``proven``, or the weaker verdict and its reason."""
        from posexport.proof.report.record import verdict

        return verdict(self.report).words

    def to_json(self) -> str:
        """The conversion as one JSON document."""
        return json.dumps(
            {
                "bundle": str(self.output) if self.manifest else None,
                "verdict": self.verdict,
                "good": self.good,
                "remarks": self.remarks,
                "manifest": msgspec.to_builtins(self.manifest),
                "parity": msgspec.to_builtins(self.report),
                "variants": {
                    name: {"manifest": msgspec.to_builtins(each.manifest), "parity": msgspec.to_builtins(each.report)}
                    for name, each in self.variants.items()
                },
            }
        )

    def to_text(self, *, width: int | None = None, colour: bool = False) -> str:
        """The table of the proof, and where the bundle is; ``width`` and ``colour`` as of `Report.to_text`."""
        from posexport.proof.report.point_table import fitted, to_text

        lines = [] if self.report is None else [to_text(self.report, width=width, colour=colour)]
        if self.manifest is None:
            lines.append(f"nothing was written to {self.output}; --keep-failed writes it anyway, marked as not proven")
        else:
            size = sum(entry.size for entry in self.manifest.files.values())
            lines.append(f"{self.output}: {size_text(size)}, opset {self.manifest.opset}, {self.verdict}")
            lines += [f"  {name}: {each.verdict}" for name, each in self.variants.items()]
        table, *sentences = lines if self.report is not None else ["", *lines]
        line = self._loading_line
        return "\n".join([*[table] * (self.report is not None), *fitted(sentences, width, colour=colour), *line])

    @property
    def _loading_line(self) -> list[str]:
        """The line that loads the directory, if its layout has one."""
        from posexport.conversion.export.layout import layout_named

        line = "" if self.manifest is None else layout_named(self.manifest.recipe.layout).loading_line(self.output)
        return [f"load it with {line}"] if line else []
