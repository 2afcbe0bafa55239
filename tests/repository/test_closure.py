"""What a conversion imports: the family, the encodings and the operators of its model, not those of all others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "bert-absolute"
#: modules of posexport that converting a BERT checkpoint imports: it was 711 when each registry imported all it has
MOST = 464
_CODE = """
import json, sys
import posexport
done = posexport.convert(sys.argv[1], sys.argv[2], lengths=[5], threads=1)
names = [name.removeprefix("posexport.") for name in sys.modules if name.startswith("posexport.")]
print(json.dumps([done.good, names]))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules of posexport that are loaded after a BERT checkpoint was converted, in a process of its own."""
    output = tmp_path_factory.mktemp("closure") / "bert"
    command = [sys.executable, "-c", _CODE, str(GOLDEN), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    good, names = json.loads(done.stdout.splitlines()[-1])
    assert good
    return names  # type: ignore[no-any-return]


def test_a_conversion_of_bert_imports_few_files(imported: list[str]) -> None:
    assert len(imported) <= MOST


#: what other sources, precisions, proofs and models need
_UNUSED = """
modules.axes. modules.live_module. graph.passes.cache. modules.recognise. through.library. folders.open_clip. serve.
inspect. study. run.audio. run.images. encodings.tupe. models.xlnet. proof.foreign. proof.quantized.read.
graph.precision.blocks. run.generate. run.logits.
"""


@pytest.mark.parametrize("package", _UNUSED.split())
def test_what_bert_does_not_use_is_not_imported(imported: list[str], package: str) -> None:
    assert not [name for name in imported if f"{name}.".startswith(package)]


def test_one_family_is_imported(imported: list[str]) -> None:
    families = {name.rpartition(".")[2] for name in imported if name.startswith("checkpoints.families.")}
    assert families == {"bert", "bert_decoder", "decoder", "encoder", "family", "registry"}
