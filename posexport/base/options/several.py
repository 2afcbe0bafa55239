"""Several inputs of a call, in the forms that callers have: lists, tuples, arrays, tensors, generators."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posexport.errors import PosexportError

#: kinds of NumPy dtypes for texts and objects
_TEXTS = ("O", "S", "U", "T")


def several(values: Any) -> list[Any] | None:
    """The elements of a list, a tuple, an iterator or an array of texts or objects; None: ``values`` is one input."""
    if isinstance(values, list | tuple) or (isinstance(values, Iterator) and not hasattr(values, "read")):
        return [*values]  # an open file is an iterator too
    if getattr(getattr(values, "dtype", None), "kind", None) in _TEXTS and values.ndim:
        listed: list[Any] = values.tolist()
        return listed
    return None


def as_prompts(prompts: Any, what: str = "prompts") -> Any:
    """Prompts as a list of texts and lists, from arrays and iterators too; arrays by name as they are."""
    if isinstance(prompts, Mapping):
        return prompts
    if isinstance(prompts, str):
        raise PosexportError(f"{what} must be a list of texts, got one text; give [text]")
    if not isinstance(prompts, Iterable) or not getattr(prompts, "ndim", 1):
        raise PosexportError(f"{what} must be a list of texts or of lists of ids, got {type(prompts).__name__}")
    return [as_prompt(prompt) for prompt in prompts]


def as_prompt(prompt: Any) -> Any:
    """A text as it is; ids and messages as a list. Anything else as it is, for a message that names its number."""
    if hasattr(prompt, "tolist"):
        return prompt.tolist()
    return list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, str | Mapping) else prompt
