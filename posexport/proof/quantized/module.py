"""The definition with stored weights: products and lookups read them, activations are rounded as the graph does.

A form is one parameter as the file has it. Shape letters: N channels, K the channels of the input.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.nn.ties import tie_shift
from posexport.proof.quantized.match import Matched
from posexport.proof.quantized.records import Array, FloatProduct, Rounding, StoredError, Use
from posexport.proof.references.precision_copy import ORIGIN

#: rows up to this magnitude count as zeros
_TINY = 1e-30


def rounded(x: Tensor, how: Rounding) -> Tensor:
    """``x`` [..., K] as a product reads it."""
    if how.kind == "exact":
        return x
    wide = x if x.dtype == torch.float64 else x.float()
    shift = tie_shift(wide)
    if how.kind == "static":
        result = _steps(wide, torch.tensor(how.step, dtype=wide.dtype), how.zero, shift)
    elif how.kind == "rows":
        result = _rows(wide, how.zero, shift)
    elif how.order is None:
        result = _blocks(wide, how.size, shift)
    else:
        order = torch.tensor(how.order, device=x.device)
        result = torch.empty_like(wide)
        result[..., order] = _blocks(wide[..., order], how.size, shift)
    return result.to(x.dtype)


def _rows(x: Tensor, zero: int, shift: float) -> Tensor:
    """uint8 about ``zero``: the highest value of a row is 255, or what its lowest asks for."""
    high, low = 255 - zero, min(zero, 255 - zero)
    top = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True) * (high / low)).clamp(min=_TINY)
    # the graph computes steps in float32
    scale = (top / high).float().to(x.dtype) if x.dtype != torch.float64 else top / high
    return _steps(x, scale, zero, shift)


def _steps(x: Tensor, scale: Tensor, zero: int, shift: float) -> Tensor:
    """uint8 about ``zero`` as real numbers, in one new tensor: activations of a proof's points are large."""
    steps = (x / scale).add_(shift).round_().add_(zero)
    return steps.clamp_(0, 255).sub_(zero).mul_(scale)


def _blocks(x: Tensor, size: int, shift: float) -> Tensor:
    """int8, symmetric: the largest magnitude of a block is 127."""
    k = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -k % size)).reshape(*x.shape[:-1], -1, size)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (padded / scale).add_(shift).round_().mul_(scale).flatten(-2)[..., :k]


@dataclass(eq=False)
class Form:
    """One parameter as a product or a lookup of a file has it.

    Attributes:
        pieces: stored weights, their channels and the rows that these are.
        transposed: the parameter is [K, N].
        factor: [K], what rows were multiplied by and activations are divided by.
        roundings: of its products in the order of the nodes.
        places: of these products among all nodes.
    """

    name: str
    rows: int
    transposed: bool
    lookup: bool
    factor: Array
    roundings: list[Rounding] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    pieces: list[tuple[Use, Array, Array]] = field(default_factory=list)

    def nbytes(self, dtype: torch.dtype) -> int:
        return self.rows * int(self.pieces[0][0].stored.whole.shape[1]) * dtype.itemsize

    def matrix(self, dtype: torch.dtype, some: Array | None = None) -> Tensor:
        """[N, K] as it is stored, factors and all; ``some``: of these rows, in rising order."""
        k = self.pieces[0][0].stored.whole.shape[1]
        wide = np.float64 if dtype == torch.float64 else np.float32
        use, channels, rows = self.pieces[0]
        if some is None and np.array_equal(rows, np.arange(self.rows)):  # the usual case, without another copy
            return torch.from_numpy(use.stored.real(channels, wide)).to(dtype)
        result = torch.from_numpy(np.zeros((self.rows if some is None else len(some), k), wide))
        for use, channels, rows in self.pieces:
            if some is not None:
                asked = np.isin(rows, some)
                channels, rows = channels[asked], np.searchsorted(some, rows[asked])
            result[torch.from_numpy(rows)] = torch.from_numpy(use.stored.real(channels, wide))
        return result.to(dtype)

    def with_float(self, parameter: Array, products: Sequence[FloatProduct]) -> None:
        """Find products that read ``parameter`` itself: DeBERTa projects positions by the weights of the content."""
        if self.lookup:
            return
        matrix = parameter.reshape([size for size in parameter.shape if size > 1] or [1])
        rows = matrix.T if self.transposed else matrix
        more = [(product.place, Rounding("float")) for product in products if product.has(rows)]
        placed = sorted([*zip(self.places, self.roundings, strict=True), *more], key=lambda pair: pair[0])
        self.places, self.roundings = ([pair[which] for pair in placed] for which in (0, 1))  # type: ignore[assignment]


def forms(matches: Sequence[tuple[Use, Matched]], zero_rows: Callable[[str], set[int]]) -> dict[tuple[str, bool], Form]:
    """By parameter, and whether it is looked up; ``zero_rows``: of a parameter, which a file need not have.

    Raises:
        StoredError: of a parameter some rows are stored and others are not.
    """
    result: dict[tuple[str, bool], Form] = {}
    for use, matched in matches:
        for candidate, channels, rows in matched.pieces:
            key = candidate.name, use.lookup
            form = result.get(key)
            if form is None:
                size = len(candidate.matrix)
                form = Form(candidate.name, size, candidate.transposed, use.lookup, matched.factor)
                form.roundings, form.places = list(use.roundings), list(use.places)
                result[key] = form
            elif (form.factor != matched.factor).any() or form.transposed != candidate.transposed:
                raise StoredError(f"{use.stored.name}: its part of {form.name} is not stored as the others are")
            form.pieces.append((use, channels, rows))
    for form in result.values():
        missing = set(range(form.rows))
        for _, _, rows in form.pieces:
            missing -= set(rows.tolist())
        if missing and (missing := missing - zero_rows(form.name)):
            raise StoredError(
                f"{form.pieces[0][0].stored.name} has {form.name} without its row {min(missing)}"
                f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}"
            )
    return result


def biases_differ(matches: Sequence[tuple[Use, Matched]], biases: Mapping[str, Array]) -> Iterator[str]:
    """Sentences on products to which other biases are added than the definition's."""
    for use, matched in matches:
        for added in use.biases:
            if added is None:
                continue
            for candidate, channels, rows in matched.pieces:
                bias = biases.get(candidate.name)
                if bias is None or bias.shape != (len(candidate.matrix),):
                    continue
                wrong = np.flatnonzero(
                    np.abs(added[channels].astype(np.float64) - bias[rows]) > 1e-3 * np.abs(bias).max()
                )
                if len(wrong):
                    yield (
                        f"{use.stored.name}: what is added to channel {int(channels[wrong[0]])} is not the bias of "
                        f"{candidate.name} ({len(wrong)} of {len(rows)} differ)"
                    )


_aten = torch.ops.aten
#: bytes of weights that are kept unpacked, where they are this share of all at least; others are unpacked when read
KEPT, _SHARE = 1 << 30, 4
#: bytes above which a matrix (of a vocabulary) is unpacked in chunks, and the rows of a chunk
_AT_ONCE, _ROWS = 1 << 28, 1 << 13


class AsStored(nn.Module):
    """``original`` with the parameters of ``forms`` in products and lookups.

    Parameters are known by where their numbers lie, so that transposed ones, and rows of one, are known too. The first
    ``kept`` bytes of matrices stay unpacked: layers are read in turn, so the one used longest ago would be the next. Of
    a model so large that it would save little none stay.
    """

    def __init__(self, original: nn.Module, forms: Mapping[tuple[str, bool], Form], kept: int = KEPT) -> None:
        super().__init__()
        self.original = original
        self._forms = dict(forms)
        self._kept = kept if sum(form.nbytes(torch.float32) for form in forms.values()) <= _SHARE * kept else 0
        self._matrices: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}

    @property
    def reused(self) -> Sequence[nn.Module]:
        """The reused modules, as a definition has them."""
        return getattr(self.original, "reused", ())

    @property
    def reused_calls(self) -> Sequence[tuple[nn.Module, str]]:
        return getattr(self.original, "reused_calls", ())

    def __deepcopy__(self, memo: dict[int, Any]) -> "AsStored":
        return type(self)(_untied(copy.deepcopy(self.original, memo), self._forms), self._forms, self._kept)

    def forward(self, **inputs: Tensor) -> Any:
        """Returns the outputs of the original."""
        with torch.inference_mode(), _Stored(self):
            return self.original(**inputs)

    def matrix(self, form: Form, like: Tensor) -> Tensor:
        """Returns the matrix [N, K] of a form, [rows, K], in the type of ``like`` and where it is."""
        key = id(form), like.dtype, like.device
        if key in self._matrices:
            return self._matrices[key]
        matrix = form.matrix(like.dtype).to(like.device)
        if matrix.nbytes + sum(kept.nbytes for kept in self._matrices.values()) <= self._kept:
            self._matrices[key] = matrix
        return matrix

    def known(self) -> "_StoredParameters":
        return _StoredParameters(self.original, self._forms)

    @cached_property
    def _as_given(self) -> "_StoredParameters":
        return self.known()

    def replaced(self, parameter: nn.Parameter, /, *, lookup: bool) -> bool:
        """Whether a form is read wherever ``parameter``, one of this module's, would be."""
        found = self._as_given.find(parameter, lookup=lookup)
        return found is not None and all(rounding.kind != "float" for rounding in found[0].roundings)


def _untied(module: nn.Module, forms: Mapping[tuple[str, bool], Form]) -> nn.Module:
    """``module``, changed in place: of a parameter with several names each that has other forms gets a copy."""
    first: dict[int, tuple[Form | None, ...]] = {}
    for path, submodule in module.named_modules():
        parameters = submodule.__dict__["_parameters"]
        for parameter_name, parameter in parameters.items():
            if parameter is None or parameter.ndim < 2:
                continue
            name = f"{path}.{parameter_name}" if path else parameter_name
            own = tuple(forms.get((name, lookup)) for lookup in (False, True))
            if first.setdefault(parameter.untyped_storage().data_ptr(), own) != own:
                parameters[parameter_name] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    return module


class _StoredParameters:
    """Which parameter a tensor is, by the memory it lies in."""

    def __init__(self, module: nn.Module, forms: Mapping[tuple[str, bool], Form]) -> None:
        self._by_memory: dict[int, tuple[str, Tensor]] = {}
        for path, submodule in module.named_modules(remove_duplicate=False):
            # copies of large modules cast parameters when they are read; the shared originals are compared
            parameters = submodule.__dict__["_parameters"]
            for parameter_name, parameter in getattr(parameters, "shared", parameters).items():
                name = f"{path}.{parameter_name}" if path else parameter_name
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
    """Inside the block, products and lookups read the stored weights."""

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
        # the parameter is [K, N] where the form is transposed, and the weight may be its transpose
        if (form.transposed == other) == transposed:
            return None
        rows = range(form.rows) if form.transposed else range(start, end)
        turn = self._used[id(form)]
        self._used[id(form)] += 1
        how = form.roundings[min(turn, len(form.roundings) - 1)]
        if how.kind == "float":
            return None
        if (form.factor != 1).any():
            x = x / torch.from_numpy(form.factor).to(x)
        x = rounded(x, how)
        if form.nbytes(x.dtype) <= _AT_ONCE:
            return F.linear(x, self._module.matrix(form, x)[rows.start : rows.stop], bias)
        parts = [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]
        y = torch.cat([F.linear(x, form.matrix(x.dtype, np.array(part)).to(x.device)) for part in parts], -1)
        return y if bias is None else y.add_(bias)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return self.product(x, weight, transposed=False, bias=bias)

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor | None:
        return self.product(x, weight, transposed=True)

    def addmm(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        result = self.product(x, weight, transposed=True)
        return None if result is None else result.add_(bias)

    def embedding(self, weight: Tensor, ids: Tensor, *_: Any) -> Tensor | None:
        stored = self._parameters.find(weight, lookup=True)
        if stored is None:
            return None
        rows, places = torch.unique(ids, return_inverse=True)
        return F.embedding(places, stored[0].matrix(weight.dtype, rows.cpu().numpy()).to(weight.device))


_REPLACED: dict[Any, Callable[..., Tensor | None]] = {
    _aten.linear.default: _Stored.linear,
    _aten.matmul.default: _Stored.matmul,
    _aten.mm.default: _Stored.matmul,
    _aten.addmm.default: _Stored.addmm,
    _aten.embedding.default: _Stored.embedding,
}
