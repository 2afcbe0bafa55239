"""Tables that a file keeps of calls of its modules, and classes whose forward closes over submodules."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.modules.copied import copied
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.live_module import module_source
from tests.small import proven
from tests.tolerances import agree

D = 6
_MASKS: dict[str, Tensor] = {}


class Masked(nn.Module):
    """Attention to tokens before, by a mask that the file keeps of the longest call, as pocket-tts'."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        length, kept = x.shape[1], _MASKS.get("causal")
        if kept is None or kept.shape[-1] < length:
            ones = torch.arange(length)
            kept = _MASKS["causal"] = ones[:, None] >= ones
        mixed: Tensor = F.scaled_dot_product_attention(self.project(x), x, x, kept[:length, :length])
        return mixed


@lru_cache
def _slopes(length: int) -> Tensor:
    return torch.arange(length).float()[:, None].expand(length, 4096).cos()


class _Placeholder:
    """Has attributes of every name, as fastcore's ``_`` in files of fastai."""

    def __getattr__(self, name: str) -> type:
        return object


_: Any = _Placeholder()


class Sloped(nn.Module):
    """A table by length, of a function that remembers the last ones."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) * _slopes(x.shape[1])[:, :1]


def chained(*parts: nn.Module) -> nn.Module:
    """A class for a function over the parts, as a-unet's."""

    def through(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x).tanh()
        return x

    def of_class(forward: Callable[[Tensor], Tensor]) -> nn.Module:
        class Part(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(parts)

            def forward(self, x: Tensor) -> Tensor:
                return forward(x)

        return Part()

    return of_class(through)


def test_a_table_of_a_file_is_kept_by_no_call(tmp_path: Path) -> None:
    proven(Masked(), tmp_path / "b", example_inputs={"x": torch.randn(2, 9, D)})
    assert not _MASKS


class Kept(nn.Module):
    """A table of a mask's values that a longer call makes anew, as labml's ALiBi: of one token it is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[1] < x.shape[1]:
            self.kept = mask[:1].cumsum(-1) - mask[:1, :1]
        return x.tanh() + self.kept[:, : x.shape[1], None]


def test_what_a_module_keeps_of_values_is_compared_in_new_copies(tmp_path: Path) -> None:
    example = {"x": torch.randn(2, 9, D), "mask": torch.randn(2, 9).exp()}
    report = proven(Kept(), tmp_path / "b", example_inputs=example).report
    assert report is not None
    assert report.stateful


def test_calls_of_shapes_leave_no_results_in_caches() -> None:
    source = module_source(Sloped(), {"x": torch.randn(2, 9, D)})
    calls = DrawnCalls("sloped", Sloped(), source.inputs)
    assert calls.accepts({"batch_size": 1, "sequence_length": 2048})
    assert type(_slopes(2048)) is Tensor


def test_functions_over_submodules_are_copied() -> None:
    module = chained(nn.Linear(D, D), nn.Linear(D, D))
    one = copied("chained", module)
    two = copied("chained", one).double()  # a copy of a copy
    x = torch.randn(2, D)
    with torch.no_grad():
        expected = module(x)
        agree(two(x.double()), expected, "model in float32", torch.float32)
        for parameter in module.parameters():
            parameter.zero_()
        assert torch.equal(one(x), expected)


_LARGE = {torch.float32: 1e8, torch.float16: 49152.0}


class Bounded(nn.Module):
    """A mean of the tokens before, by the largest number of a dtype, as sockeye's masks."""

    def forward(self, x: Tensor) -> Tensor:
        token = torch.arange(x.shape[1])
        scores = torch.zeros(1, dtype=x.dtype).masked_fill(token[:, None] < token, -_LARGE[x.dtype])
        return scores.softmax(-1) @ x


def test_a_table_by_dtype_needs_no_entry_for_the_reference(tmp_path: Path) -> None:
    proven(Bounded(), tmp_path / "b", example_inputs={"x": torch.randn(2, 9, D)}, lengths=[1, 9])
    assert torch.float64 not in _LARGE


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")


lazy = _Lazy("lazy")


def test_a_file_may_import_a_package_that_loads_what_it_is_asked_for(tmp_path: Path) -> None:
    """cebra's, whose every attribute is looked for as a submodule."""
    proven(Sloped(), tmp_path / "b", example_inputs={"x": torch.randn(2, 9, D)}, lengths=[1, 9])
