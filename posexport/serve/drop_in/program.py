"""What `posexport.torch_onnx_export` returns, in the place of torch's ``ONNXProgram``."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.serve.drop_in import finish

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from posexport.parity.report.report import Report


@dataclass(frozen=True)
class ExportedModel:
    """A model that was exported.

    Attributes:
        model: of onnx_ir, as the ``.model`` of torch's ``ONNXProgram``.
        report: the proof; None where ``parity=False``.
        remarks: what a user should know beside the result.
    """

    model: "ir.Model"
    report: "Report | None"
    remarks: tuple[str, ...]

    @property
    def model_proto(self) -> "onnx.ModelProto":
        """The model as onnx's message; weights that stand in a file of their own stay there."""
        import onnx_ir as ir

        return ir.to_proto(self.model)

    @property
    def verdict(self) -> str:
        """The proof in words: ``proven``, or what is less than that and why."""
        from posexport.parity.report.verdict import verdict

        return verdict(self.report).words

    def save(self, destination: "str | os.PathLike[str]", *, external_data: bool | None = None) -> None:
        """Write the ``.onnx``; ``external_data``: weights beside it, by default where one file cannot hold them."""
        path = Path(destination)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            into_place(finish.save(self.model, Path(folder) / path.name, external=external_data), path)


def into_place(files: list[Path], path: Path) -> None:
    """Move finished files to where ``path`` is, weights first, in the place of those that are there."""
    for file in files:
        os.replace(file, path.parent / file.name)
