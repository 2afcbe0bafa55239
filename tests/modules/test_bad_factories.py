"""What a user's file, example or module can be instead of a good one: one sentence, exit code 2, nothing written."""

import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posexport.cli import main
from posexport.errors import PosexportError
from posexport.modules.returned import named_outputs
from posexport.run.bundle.read import read

SOURCE = '''
import dataclasses
import sys
import torch
from torch import nn

V, D = 17, 12
IDS = torch.arange(32).reshape(2, 16) % V
X = torch.randn(2, 16, D)


class Ids(nn.Module):
    def __init__(self, what=lambda self, x: x):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.linear, self.what = nn.Embedding(V, D), nn.Linear(D, D), what

    def forward(self, input_ids):
        return self.what(self, self.linear(self.token(input_ids)))


class Real(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        return self.linear(x)


class Remade(Ids):
    def train(self, mode=True):
        if not mode:
            self.linear = nn.Linear(D, D)
        return super().train(mode)


class Merged(Ids):
    """Adapters are merged into the weights by the first eval(): the second changes nothing."""

    merged = False

    def train(self, mode=True):
        if not mode and not self.merged:
            self.merged = True
            self.linear.weight.data += 1.0
        return super().train(mode)


class NoEval(Ids):
    def train(self, mode=True):
        if not mode:
            raise RuntimeError("never in eval mode")
        return super().train(mode)


class Part(Ids):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D, device="meta")


def keep(self, x):
    self.last = x if getattr(self, "last", None) is None or self.last.shape != x.shape else self.last / 2 + x
    return self.last


def takes(size):
    return Ids(), IDS


def imports():
    import not_there_at_all


def prints():
    print("from the factory")
    print("to stderr", file=sys.stderr)
    return Real().half(), {"x": X.half()}


def quantized():
    return torch.ao.quantization.quantize_dynamic(Ids(), {nn.Linear}), {"input_ids": IDS}


def scripted():
    return torch.jit.script(nn.Linear(D, 5)), {"input": X}


Out = dataclasses.make_dataclass("Out", ["hidden", "layers", ("loss", object, None)])
ids = lambda example: lambda: (Ids(), {"input_ids": example})
real = lambda example: lambda: (Real(), {"x": example})
does = lambda what: lambda: (Ids(what), {"input_ids": IDS})

raises = lambda: 1 / 0
nothing = lambda: None
a_class = lambda: Ids
no_forward = lambda: (nn.Module(), {"x": X})
meta = lambda: (Ids().to("meta"), {"input_ids": IDS})
part = lambda: (Part(), {"input_ids": IDS})
remade = lambda: (Remade(), {"input_ids": IDS})
merged = lambda: (Merged(), {"input_ids": IDS})
no_eval = lambda: (NoEval(), {"input_ids": IDS})
more = lambda: (Ids(), {"input_ids": IDS, "other": IDS})
other_name = lambda: (Ids(), {"ids": IDS})
missing = lambda: (nn.Bilinear(D, D, D), {"input1": X})
wrong_width = real(X[..., :5])
complexes, strings, lists, scalar = real(X.to(torch.complex64)), ids("hello"), ids([[1, 2]]), ids(IDS[0, 0])
empty, no_rows, none, no_inputs = ids(IDS[:, :0]), real(X[:0]), ids(None), lambda: (Ids(), {})
on_meta, negative, real_ids = ids(IDS.to("meta")), ids(IDS - 3), ids(IDS.float())
returns_none, returns_text = does(lambda self, x: None), does(lambda self, x: {"h": x, "by": ["me"]})
noisy, twice = does(lambda self, x: x + torch.rand(D)), does(lambda self, x: {"a.b": x, "a": {"b": x}})
state, nan64 = does(keep), does(lambda self, x: x / 0 if x.dtype == torch.float64 else x)
flattened = does(lambda self, x: {"out": Out(x, (x * 2, None, {"last": x * 3}))})
'''


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "models.py"
    path.write_text(SOURCE)
    return path


def convert(monkeypatch: pytest.MonkeyPatch, factory: str, output: Path) -> int:
    """The command line in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["posexport", "convert", factory, "-o", str(output), "--length", "5"])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.filterwarnings("ignore")  # PyTorch says that quantize_dynamic and TorchScript are deprecated
@pytest.mark.parametrize(
    ("factory", "words"),
    [
        # the factory
        ("raises", "failed: ZeroDivisionError: division by zero (models.py line"),
        ("nothing", "must return a torch module, (module, inputs) or (module, inputs, axes), got NoneType"),
        ("a_class", "must return a torch module, (module, inputs) or (module, inputs, axes), got type"),
        ("takes", "is called without arguments, and needs size; give them defaults"),
        ("imports", "ModuleNotFoundError: No module named 'not_there_at_all' (models.py line"),
        # the module
        ("no_forward", "Module has no forward"),
        ("meta", "token.weight is on the device meta, which holds no values; load the weights"),
        ("part", "linear.weight is on the device meta"),
        ("quantized", "linear is quantized; return the module as it was before, and quantize with --precision int8"),
        ("scripted", "it is TorchScript; return the module that it was made from"),
        ("remade", "every call of eval() makes or changes linear.weight"),
        ("no_eval", "the module raised RuntimeError('never in eval mode') in eval()"),
        ("state", "output output changes from call to call with the same inputs"),
        ("nan64", "output output is NaN or infinite in float64, the precision of the reference, and finite in float32"),
        # examples
        ("more", "TypeError: Ids.forward() got an unexpected keyword argument 'other'"),
        ("other_name", "TypeError: Ids.forward() got an unexpected keyword argument 'ids'"),
        ("missing", "TypeError: Bilinear.forward() missing 1 required positional argument: 'input2'"),
        ("wrong_width", "mat1 and mat2 shapes cannot be multiplied (32x5 and 12x12) (models.py line"),
        ("real_ids", "Expected tensor for argument #1 'indices'"),
        ("complexes", "bool: give torch.view_as_real(x), and let forward take torch.view_as_complex(x)"),
        ("strings", "inputs must map names to tensors, got 'input_ids': str"),
        ("lists", "inputs must map names to tensors, got 'input_ids': list"),
        ("none", "inputs must map names to tensors, got 'input_ids': NoneType"),
        ("no_inputs", "inputs must map names to tensors, got dict"),
        ("scalar", "the examples of input_ids are single numbers; one must have axes"),
        ("empty", "the example of input_ids must hold values, got shape [2, 0]"),
        ("no_rows", "the example of x must hold values, got shape [0, 16, 12]"),
        ("on_meta", "got shape [2, 16] on the device meta"),
        ("negative", "input input_ids: the example must hold ids from 0 on, got -3"),
        # outputs
        (
            "returns_none",
            "must return tensors, alone or in tuples, dicts, dataclasses and objects, got NoneType",
        ),
        (
            "returns_text",
            "must return tensors, alone or in tuples, dicts, dataclasses and objects, got str as by.0",
        ),
        ("noisy", "changes from call to call with the same inputs: models.py line"),
        ("twice", "the module returned two outputs that are both called a.b"),
    ],
)
def test_bad_input_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    models: Path,
    tmp_path: Path,
    factory: str,
    words: str,
) -> None:
    code = convert(monkeypatch, f"{models}:{factory}", tmp_path / "b")
    out, err = capfd.readouterr()
    said = err.splitlines()[-1]
    assert (code, out) == (2, ""), err
    assert said.startswith("posexport: ")
    assert words in said
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_what_a_factory_prints_goes_to_stderr_and_half_precision_is_widened(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], models: Path, tmp_path: Path
) -> None:
    code = convert(monkeypatch, f"{models}:prints", tmp_path / "b")
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "from the factory" not in out
    assert "from the factory\nto stderr\n" in err
    assert [spec.dtype for spec in read(tmp_path / "b").inputs] == ["float32"]


@pytest.mark.parametrize(
    ("factory", "outputs"), [("flattened", ["out.hidden", "out.layers.0", "out.layers.2.last"]), ("merged", ["output"])]
)
def test_outputs_in_containers_are_named_and_proven(
    monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path, factory: str, outputs: list[str]
) -> None:
    assert convert(monkeypatch, f"{models}:{factory}", tmp_path / "b") == 0
    assert [spec.name for spec in read(tmp_path / "b").outputs] == outputs


@dataclass
class Answer:
    hidden: Tensor
    pooled: Tensor | None = None


Pair = namedtuple("Pair", ["first", "second"])
ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (ONE, ["output"]),
        ([ONE, TWO], ["output_0", "output_1"]),
        ((ONE, None, (TWO, ONE)), ["output_0", "output_2.0", "output_2.1"]),
        ({"a": ONE, "b": {"c": TWO, "d": None}}, ["a", "b.c"]),
        (OrderedDict(a=Answer(ONE)), ["a.hidden"]),
        (Answer(ONE, TWO), ["hidden", "pooled"]),
        (Pair(ONE, [TWO]), ["first", "second.0"]),
        (torch.return_types.max((ONE, TWO)), ["output_0", "output_1"]),
    ],
)
def test_names_of_outputs(answer: object, names: list[str]) -> None:
    assert list(named_outputs(answer)) == names


@pytest.mark.parametrize("answer", [{}, (), None, {"a": None}, 3, Answer])
def test_without_a_tensor_there_is_no_output(answer: object) -> None:
    with pytest.raises(PosexportError, match="must return"):
        named_outputs(answer)
