"""Providers that audits know by published lists: what the table has, and that it is what the documents say."""

import re
import sys
from pathlib import Path

import onnx.defs
import onnxruntime
import pytest

from posexport.base.targets import kernels
from posexport.base.targets.kernels import LISTS, Kernels, load_table
from posexport.base.targets.listed import COREML, DML, LISTED, QNN, audited
from posexport.base.targets.providers import PROVIDERS, Provider, targets
from posexport.base.targets.target import MICROSOFT

sys.path.insert(0, str(Path(__file__).parents[3] / "ci" / "kernels"))
import listed as documents  # the command of ci/
import table as wheel

TABLES = load_table(LISTS).providers


def test_every_listed_provider_has_a_table_with_its_source() -> None:
    assert TABLES.keys() == {provider.ort_name for provider in LISTED.values()}
    for provider in LISTED.values():
        assert " at cee6c0d91e58" in TABLES[provider.ort_name].source
        assert kernels.has_table(provider.ort_name)
        assert provider.sizes
        assert provider.int64
        assert provider.name not in {**PROVIDERS, **targets()}, "nothing is converted for it, and nothing runs on it"
        assert audited()[provider.name] is provider
    path = Path(kernels.__file__).parent / "kernel_tables" / f"{LISTS}.json"
    assert path.read_text(encoding="utf-8") == wheel.as_text(load_table(LISTS))


def test_a_list_is_of_no_version() -> None:
    assert LISTS not in kernels.versions()
    assert {kernels.table_of(provider.ort_name) for provider in LISTED.values()} == {LISTS}
    assert not TABLES.keys() & load_table(kernels.versions()[-1]).providers.keys()


@pytest.mark.parametrize("provider", LISTED.values(), ids=lambda provider: provider.name)
def test_rows_are_operators_and_types(provider: Provider) -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    rows = TABLES[provider.ort_name].kernels
    assert len(rows) > 60
    assert len({(kernel.domain, kernel.operator, kernel.since) for kernel in rows}) == len(rows)
    # of ONNX Runtime alone, and of ONNX's first versions
    runtime = {"GroupNorm", "MemcpyFromHost", "MemcpyToHost", "SimplifiedLayerNormalization"}
    older = {"Affine", "Crop", "ImageScaler", "ParametricSoftplus", "ScaledTanh"}
    assert {kernel.operator for kernel in rows if not kernel.domain} <= known | runtime | older
    element = re.compile(r"bool|double|string|u?int\d+|b?float\d*(e\dm\d\w*)?")
    assert not [name for kernel in rows for name in kernel.dtypes if not element.fullmatch(name)]


@pytest.mark.parametrize(
    ("provider", "has", "lacks"),
    [
        (COREML, ["Gather", "MatMul", "Gelu", "LayerNormalization", "Erf"], ["Equal", "NonZero", "Einsum", "TopK"]),
        (DML, ["Gather", "MatMul", "LayerNormalization", "Erf", "Equal"], ["GridSample", "Unique", "Det"]),
        (QNN, ["Gather", "MatMul", "Gelu", "LayerNormalization", "Equal"], ["Erf", "Range", "Shape", "If"]),
    ],
)
def test_operators_of_encoders(provider: Provider, has: list[str], lacks: list[str]) -> None:
    def of(operator: str) -> bool:
        return bool(kernels.rows(provider.ort_name, operator, "", 20))

    assert not [name for name in has if not of(name) and (provider, name) != (DML, "Gelu")]
    assert not [name for name in lacks if of(name)]


def test_directml_has_versions_and_types() -> None:
    rows = kernels.rows(DML.ort_name, "LayerNormalization", "", 18)
    assert rows == [Kernels("LayerNormalization", "", 17, None, ("float", "float16"))]
    assert kernels.rows(DML.ort_name, "MultiHeadAttention", MICROSOFT, 1)
    assert not kernels.rows(DML.ort_name, "Gelu", "", 20), "ONNX's own, of opset 20"
    assert kernels.rows(QNN.ort_name, "Gelu", MICROSOFT, 1)
    assert kernels.rows(QNN.ort_name, "Gelu", "", 20)


def test_the_document_is_read_by_its_columns() -> None:
    text = """
        ## Operators implemented by DmlExecutionProvider
        | Op Name | Parameters | OpSet Version | Types Supported |
        |**Operator Domain:** *ai.onnx*||||
        |Add|*in* A:**T**<br> *out* C:**T**|14+|**T** = tensor(float), tensor(int64)|
        |||[7, 12]|**T** = tensor(float)|
        |Where|*in* condition:**B**<br> *in* X:**T**|9+|**B** = tensor(bool)<br/> **T** = tensor(float16)|
        |**Operator Domain:** *com.microsoft.dml*||||
        |Fused|*in* X:**T**|1+|**T** = tensor(float)|
    """
    assert list(documents._rows("\n".join(line.strip() for line in text.splitlines()))) == [
        Kernels("Add", "", 14, None, ("float", "int64")),
        Kernels("Add", "", 7, 12, ("float",)),
        Kernels("Where", "", 9, None, ("float16",)),
    ]


def test_coreml_has_what_the_installed_wheel_lists() -> None:
    """The list of ONNX Runtime 1.31 and 1.32 is the same."""
    if not onnxruntime.__version__.startswith(("1.31.", "1.32.")):
        pytest.skip("the list is of another ONNX Runtime")
    listed = {name.removeprefix(":") for name in documents._coreml_list()}
    coreml = TABLES[COREML.ort_name]
    (added,) = coreml.disagreements.values()
    rows = {f"{kernel.domain}:{kernel.operator}".removeprefix(":") for kernel in coreml.kernels}
    assert rows == listed | {line.partition(":")[0] for line in added}
    assert {"Gather", "ReduceMin"} <= rows - listed
