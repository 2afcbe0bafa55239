"""Writes ``posexport/base/targets/kernel_tables/listed.json``: providers with registries that cannot be read here.

Usage: PYTHONPATH=. python ci/kernels/listed.py GIT, a git directory of github.com/onnxruntime/onnxruntime-qnn, which
holds ONNX Runtime's tree too.

Sources, by provider:

- DirectML: its part of docs/OperatorKernels.md, which ONNX Runtime writes from its registries.
- CoreML: the list of ML programs in the installed onnxruntime wheel, and operators that are not in the list, although
  their builders make ML programs by GIT.
- QNN: the operators that its factory has builders for.

CoreML's and QNN's lists have neither versions nor types; in the table they have all versions, and no types.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx.defs
import onnxruntime
from table import FOLDER, as_text, data_types

from posexport.base.targets.kernels import LISTS, Kernels, KernelTable, ProviderKernels
from posexport.base.targets.listed import COREML, DML, QNN
from posexport.base.targets.target import MICROSOFT

_REPOSITORY = "github.com/onnxruntime/onnxruntime-qnn"
_PROVIDERS = "onnxruntime/core/providers"
_LIST = "tools/mobile_helpers/coreml_supported_mlprogram_ops.md"
#: CoreML's builders refuse newer versions (base_op_builder.h); QNN's refuse none
_NEWEST = 25
#: operators of the list by other names than ONNX's
_NAMES = {"Argmax": "ArgMax"}
#: QNN's builders know an operator by its name alone: the operators of com.microsoft with ONNX's names
_IN_BOTH = ("DequantizeLinear", "Gelu", "QuantizeLinear")
#: operators in ONNX's domain that ONNX Runtime defines
_OF_RUNTIME = ("SimplifiedLayerNormalization",)


def main(git: str) -> None:
    commit = _said(git, "rev-parse", "HEAD").strip()
    api = re.search(r"ORT_API_VERSION (\d+)", _shown(git, "include/onnxruntime/core/session/onnxruntime_c_api.h"))
    runtime, qnn = f"1.{api[1] if api else '?'}", _shown(git, "VERSION_NUMBER").strip()
    at = f"of {_REPOSITORY} at {commit}"
    wheel = onnxruntime.__version__
    listed, built = list(_coreml_list()), list(_coreml_builders(git))
    missing = [name for name in built if name not in listed]
    differences = [f"{name.removeprefix(':')}: not in the list" for name in missing]
    providers = {
        COREML.ort_name: ProviderKernels(
            source=f"{_LIST} of onnxruntime {wheel}; {_PROVIDERS}/coreml/builders {at}",
            plugin=f"ONNX Runtime {wheel}",
            disagreements={f"{_LIST} of onnxruntime {wheel}": differences},
            kernels=[_any_version(name) for name in sorted({*listed, *missing})],
        ),
        DML.ort_name: ProviderKernels(
            source=f"docs/OperatorKernels.md {at}",
            plugin=f"ONNX Runtime {runtime}",
            disagreements={},
            kernels=sorted(_rows(_shown(git, "docs/OperatorKernels.md")), key=_place),
        ),
        QNN.ort_name: ProviderKernels(
            source=f"{_PROVIDERS}/qnn/builder/op_builder_factory.cc {at}",
            plugin=f"onnxruntime-qnn {qnn}",
            disagreements={},
            kernels=[_any_version(name) for name in _qnn(git)],
        ),
    }
    (FOLDER / f"{LISTS}.json").write_text(as_text(KernelTable(onnxruntime=f"{runtime}.0", providers=providers)))


def _said(git: str, *arguments: str) -> str:
    done = subprocess.run(["git", "--git-dir", git, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _shown(git: str, path: str) -> str:
    return _said(git, "show", f"HEAD:{path}")


def _place(kernels: Kernels) -> tuple[str, str, int]:
    return kernels.domain, kernels.operator, kernels.since


def _any_version(name: str) -> Kernels:
    domain, _, operator = name.rpartition(":")
    return Kernels(operator, domain, 1, _NEWEST, ())


def _coreml_list() -> Iterator[str]:
    """Operators as ``domain:name``, ONNX's without a domain."""
    text = Path(onnxruntime.__file__).parent.joinpath(_LIST).read_text(encoding="utf-8")
    for domain, name in re.findall(r"^\|([\w.]+)[:.](\w+)\|", text, re.MULTILINE):
        yield f"{'' if domain == 'ai.onnx' else domain}:{_NAMES.get(name, name)}"


def _coreml_builders(git: str) -> Iterator[str]:
    """Operators with a builder that makes ML programs."""
    folder = f"{_PROVIDERS}/coreml/builders"
    makers: dict[str, str] = {}
    for path in _said(git, "ls-tree", "--name-only", "HEAD", f"{folder}/impl/").split():
        text = _shown(git, path)
        if re.search(r"bool SupportsMLProgram\(\) const override \{ return true", text):
            makers |= dict.fromkeys(re.findall(r"void (Create\w+OpBuilder)\(", text), path)
    for maker, operator in re.findall(r'(Create\w+)\("(\w+)"', _shown(git, f"{folder}/op_builder_factory.cc")):
        if maker in makers:
            yield f":{operator}"


def _qnn(git: str) -> list[str]:
    text = _shown(git, f"{_PROVIDERS}/qnn/builder/op_builder_factory.cc")
    operators = sorted(set(re.findall(r'Create\w+\("(\w+)"', text)))
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    onnx_own = [f":{name}" for name in operators if name in known or name in _OF_RUNTIME]
    return onnx_own + [f"{MICROSOFT}:{name}" for name in operators if f":{name}" not in onnx_own or name in _IN_BOTH]


def _rows(document: str) -> Iterator[Kernels]:
    """The rows of DirectML's part: operator, parameters, versions as ``13+`` or ``[7, 12]``, types by parameter."""
    domain = operator = ""
    parameters: list[str] = []
    for line in document.split("## Operators implemented by DmlExecutionProvider")[1].splitlines():
        if heading := re.match(r"\|\*\*Operator Domain:\*\* \*([\w.]+)\*", line):
            domain = "" if heading[1] == "ai.onnx" else heading[1]
        elif (cells := line.split("|")) and len(cells) > 4 and re.search(r"\d", cells[3]) and domain in ("", MICROSOFT):
            if cells[1]:
                operator = cells[1]
                parameters = re.findall(r"\*(?:in|out)\* \w+:\*\*([^*]+)\*\*", cells[2])
            constraints = dict(re.findall(r"\*\*(\w+)\*\* = ((?:[\w()]+(?:, )?)+)", cells[4]))
            types = {name: set(re.findall(r"\btensor\((\w+)\)", constraints.get(name, name))) for name in parameters}
            since, *until = map(int, re.findall(r"\d+", cells[3]))
            yield Kernels(operator, domain, since, until[0] if until else None, data_types(types))


if __name__ == "__main__":
    main(sys.argv[1])
