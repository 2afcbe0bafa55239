"""The original library's model of a checkpoint, and its outputs in float64 and float32 with eager attention."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ci.lab.scoreboard.samples import Size, accepted, sample, tensors

#: RoPE frequencies that depend on the length of the call: the reference takes the same calls, with its cache
_BY_LENGTH = ("dynamic", "longrope")

#: of the scale: from where on two implementations of attention differ
APART = 1e-4

#: what models call their cache
_CACHES = ("past_key_values", "cache_params", "cache")


def load(checkpoint: str, **options: Any) -> Any:
    """The class that the checkpoint names, float32, in inference mode; no tensor may be missing from the file."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(checkpoint)
    cls = getattr(transformers, config.architectures[0])
    model, report = cls.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise ValueError(f"transformers {transformers.__version__} finds no {min(report['missing_keys'])}")
    return model.eval()


class Reference:
    """A checkpoint's model; every call uses a fresh copy, since some models keep state between calls."""

    def __init__(self, model: Any) -> None:
        import torch

        self.model = model
        self._double = copy.deepcopy(model).to(torch.float64)
        #: the same checkpoint with the library's default attention, where that gives other values
        self.also: list[Reference] = []

    @staticmethod
    def of(checkpoint: str) -> "Reference":
        """The model with eager attention; where the default attention gives other values, those are right too.

        Falcon's eager attention adds ALiBi twice (transformers 4.57 and 5.24), its default one once.
        """
        usual = load(checkpoint)
        try:
            eager = load(checkpoint, attn_implementation="eager")
        except ValueError as err:
            if "attn_implementation" not in str(err):
                raise
            return Reference(usual)
        reference, default = Reference(eager), Reference(usual)
        with contextlib.suppress(Exception):  # what the library refuses, it refuses in the judge too
            inputs = sample(eager, Size(2, 5))
            one, other = (x(inputs, [5])[0] for x in (reference, default))
            apart = any(np.abs(one[name] - other[name]).max() > APART * np.abs(one[name]).max() for name in one)
            reference.also += [default] if apart else []
        return reference

    def __call__(
        self, arrays: Mapping[str, np.ndarray], calls: list[int], *, cached: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs by name in float64 and in float32, which is the reference where a model cannot compute in float64.

        Outputs of several ``calls`` (lengths) are computed in one, but where frequencies depend on the length.
        ``cached``: each call with the model's cache of the one before, logits alone.
        """
        import torch

        # float32 first: what it refuses is no point
        cached = len(calls) > 1 and (cached or self._by_length())
        single = self._outputs(self.model, arrays, torch.float32, calls if cached else [])
        try:
            return self._outputs(self._double, arrays, torch.float64, calls if cached else []), single
        except (RuntimeError, ValueError):
            return single, single

    def _outputs(self, model: Any, arrays: Mapping[str, np.ndarray], dtype: Any, calls: list[int]) -> dict[str, Any]:
        import torch

        model = copy.deepcopy(model)
        inputs = tensors(arrays, accepted(model), dtype)
        with torch.inference_mode(), _softmax_in(dtype):
            if calls:
                return {"logits": np.concatenate(self._cached(model, inputs, calls), 1)}
            outputs = model(**inputs)
        return {name: x.numpy() for name, x in outputs.items() if _compared(name, x)}

    def _by_length(self) -> bool:
        config = self.model.config
        rope: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        return rope.get("rope_type", rope.get("type")) in _BY_LENGTH

    def _cached(self, model: Any, inputs: dict[str, Any], calls: list[int]) -> list[Any]:
        """Logits of calls that end at these lengths, each with the cache of the one before."""
        cache, start, parts = dict[str, Any](), 0, []
        for end in calls:
            cut = {name: x[:, start:end] for name, x in inputs.items() if name in ("input_ids", "position_ids")}
            cut |= {name: x[:, :end] for name, x in inputs.items() if name == "attention_mask"}
            outputs = model(**cut, **cache, use_cache=True)
            # the same name in and out
            cache, start = {name: outputs[name] for name in _CACHES if outputs.get(name) is not None}, end
            parts.append(outputs.logits.numpy())
        return parts


@contextlib.contextmanager
def _softmax_in(dtype: Any) -> Iterator[None]:
    """Softmax in float64, also where models ask for float32.

    In float32 the least float64, which masks, is minus infinity, and rows of padding become NaN.
    """
    import torch

    original = torch.nn.functional.softmax

    def softmax(x: Any, *args: Any, **options: Any) -> Any:
        if dtype == torch.float64 and options.get("dtype") == torch.float32:
            options["dtype"] = dtype
        return original(x, *args, **options)

    torch.nn.functional.softmax = softmax  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.functional.softmax = original


def _compared(name: str, value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point() and value.dim() > 0 and name != "loss"
