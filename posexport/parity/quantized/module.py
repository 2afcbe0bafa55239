"""A definition whose products and lookups read stored weights."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.parity.quantized.forms import Form
from posexport.parity.quantized.rounding import rounded
from posexport.parity.references.shared_weights import ORIGIN

_aten = torch.ops.aten
#: bytes of stored weights that are kept unpacked; above it they are unpacked where they are read
_KEPT = 1 << 30


class AsStored(nn.Module):
    """``original``, whose parameters are those of ``forms`` in products and lookups.

    Parameters are known by where their numbers lie, so that transposed ones, and rows of one, are known too. What
    several names share is kept apart, as each name may have a form of its own.
    """

    def __init__(self, original: nn.Module, forms: Mapping[tuple[str, bool], Form]) -> None:
        super().__init__()
        self.original = original
        self._forms = dict(forms)
        self._matrices: dict[tuple[int, torch.dtype], Tensor] = {}

    @property
    def reused(self) -> Sequence[nn.Module]:
        """As of a definition."""
        return getattr(self.original, "reused", ())

    def __deepcopy__(self, memo: dict[int, Any]) -> "AsStored":
        return type(self)(_untied(copy.deepcopy(self.original, memo)), self._forms)

    def forward(self, **inputs: Tensor) -> Any:
        """As of the original."""
        with torch.inference_mode(), _Stored(self):
            return self.original(**inputs)

    def matrix(self, form: Form, dtype: torch.dtype) -> Tensor:
        """[N, K] of a form, [rows, K]."""
        key = id(form), dtype
        if key not in self._matrices:
            matrix = form.matrix(dtype)
            if sum(each.nbytes for each in self._matrices.values()) + matrix.nbytes > _KEPT:
                return matrix
            self._matrices[key] = matrix
        return self._matrices[key]

    def known(self) -> "_StoredParameters":
        return _StoredParameters(self.original, self._forms)


def _untied(module: nn.Module) -> nn.Module:
    """``module``, changed in place: what several parts share, each has for its own, by which it is known."""
    seen: set[int] = set()
    for part in module.modules():
        for name, parameter in part.__dict__["_parameters"].items():
            if parameter is None:
                continue
            place = parameter.untyped_storage().data_ptr()
            if place in seen and parameter.ndim > 1:
                part.__dict__["_parameters"][name] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
            seen.add(place)
    return module


class _StoredParameters:
    """Which parameter a tensor is, by the memory it lies in."""

    def __init__(self, module: nn.Module, forms: Mapping[tuple[str, bool], Form]) -> None:
        self._by_memory: dict[int, tuple[str, Tensor]] = {}
        for path, part in module.named_modules(remove_duplicate=False):
            # copies of large modules cast what is read; what they share is looked at as it is
            parameters = part.__dict__["_parameters"]
            for own, parameter in getattr(parameters, "shared", parameters).items():
                name = f"{path}.{own}" if path else own
                if parameter is not None and ((name, False) in forms or (name, True) in forms):
                    self._by_memory[parameter.untyped_storage().data_ptr()] = name, parameter
        self._forms = forms

    def find(self, weight: object, *, lookup: bool) -> tuple[Form, int, int, bool] | None:
        """The form, which rows of it [start, end), and whether it is the other way round than the parameter."""
        if not isinstance(weight, Tensor) or weight.ndim < 2:
            return None
        tensor: Tensor = getattr(weight, ORIGIN, weight)
        name, parameter = self._by_memory.get(tensor.untyped_storage().data_ptr(), ("", tensor))
        form = self._forms.get((name, lookup))
        if form is None:
            return None
        k, n = parameter.stride(0), parameter.shape[0]
        offset = tensor.storage_offset() - parameter.storage_offset()
        if tensor.shape[0] == parameter.shape[0] and tensor.stride(0) == k:
            return form, 0, n, False
        if tensor.ndim == 2 and tensor.stride(0) == k and tensor.shape[1] == parameter.shape[1]:
            return form, offset // k, offset // k + tensor.shape[0], False
        if tensor.ndim == 2 and tensor.stride(1) == k and tensor.shape[0] == parameter.shape[1]:
            return form, offset // k, offset // k + tensor.shape[1], True
        return None


class _Stored(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block products and lookups read what is stored."""

    def __init__(self, module: AsStored) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._parameters = module.known()
        self._used: Counter[int] = Counter()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Part of the protocol of PyTorch's dispatch modes."""
        del types
        replaced = _REPLACED.get(func)
        result = None if replaced is None else replaced(self, *args)
        return func(*args, **(kwargs or {})) if result is None else result

    def product(self, x: Tensor, weight: object, *, transposed: bool, bias: Tensor | None = None) -> Tensor | None:
        """``x`` by a weight [N, K], or [K, N] where ``transposed``; None where it is no stored one."""
        stored = self._parameters.find(weight, lookup=False)
        if stored is None:
            return None
        form, start, end, other = stored
        whole = self._module.matrix(form, x.dtype)
        # the parameter is [K, N] where the form is transposed, and the weight may be its transpose
        if (form.transposed == other) == transposed:
            return None
        matrix = whole if form.transposed else whole[start:end]
        turn = self._used[id(form)]
        self._used[id(form)] += 1
        how = form.roundings[min(turn, len(form.roundings) - 1)]
        if how.kind == "float":
            return None
        if (form.factor != 1).any():
            x = x / torch.from_numpy(form.factor).to(x.dtype)
        return F.linear(rounded(x, how), matrix, bias)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return self.product(x, weight, transposed=False, bias=bias)

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor | None:
        return self.product(x, weight, transposed=True)

    def addmm(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        result = self.product(x, weight, transposed=True)
        return None if result is None else result + bias

    def embedding(self, weight: Tensor, ids: Tensor, *_: Any) -> Tensor | None:
        stored = self._parameters.find(weight, lookup=True)
        return None if stored is None else F.embedding(ids, self._module.matrix(stored[0], weight.dtype))


_REPLACED: dict[Any, Callable[..., Tensor | None]] = {
    _aten.linear.default: _Stored.linear,
    _aten.matmul.default: _Stored.matmul,
    _aten.mm.default: _Stored.matmul,
    _aten.addmm.default: _Stored.addmm,
    _aten.embedding.default: _Stored.embedding,
}
