"""The result of `posexport.torch_onnx_export`, like torch's ``ONNXProgram``."""

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
    """An exported model.

    Attributes:
        model: the onnx_ir model, like ``.model`` of torch's ``ONNXProgram``.
        report: the report of the proof; None if ``parity=False``.
        remarks: sentences about the module and the file that a user should know.
    """

    model: "ir.Model"
    report: "Report | None"
    remarks: tuple[str, ...]

    @property
    def model_proto(self) -> "onnx.ModelProto":
        """The model as ``onnx.ModelProto``; external weights stay external."""
        import onnx_ir as ir

        return ir.to_proto(self.model)

    @property
    def verdict(self) -> str:
        """The verdict of the proof: ``proven``, or what is missing for that."""
        from posexport.parity.report.verdict import verdict

        return verdict(self.report).words

    def save(self, destination: "str | os.PathLike[str]", *, external_data: bool | None = None) -> None:
        """Write the ``.onnx``; ``external_data``: weights in a second file, by default if one cannot hold them."""
        path = Path(destination)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            into_place(finish.save(self.model, Path(folder) / path.name, external=external_data), path)


def into_place(files: list[Path], path: Path) -> None:
    """Move finished files into the folder of ``path``, weights first; existing files are replaced."""
    for file in files:
        os.replace(file, path.parent / file.name)
