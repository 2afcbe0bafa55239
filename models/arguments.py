"""The arguments of a module around any model of texts, which passes on those that it is given."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

#: of every model of texts, in their order; torch.export binds tensors to the names in a forward's signature
_NAMES = (
    "attention_mask",
    "token_type_ids",
    "global_attention_mask",
    "prompt_mask",
    "encoder_hidden_states",
    "encoder_attention_mask",
    "past_key_values",
    "position_ids",
    "adapter_ids",
    "past_conv",
    "past_recurrent",
)
_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def of_texts(first: str) -> Callable[[_Forward], _Forward]:
    """Gives a ``forward(self, **tensors)`` the signature of a model of texts, whose first argument is ``first``.

    ``forward`` gets the arguments of a call by name, except those that are None.
    """
    names = (first, *_NAMES)
    optional = (inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in _NAMES)
    required = (inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", first))
    more = inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD)

    def decorate(forward: _Forward) -> _Forward:
        @functools.wraps(forward)
        def call(self: Any, *positional: Any, **named: Any) -> Any:
            given = dict(zip(names, positional, strict=False)) | named
            return forward(self, **{name: value for name, value in given.items() if value is not None})

        call.__signature__ = inspect.Signature([*required, *optional, more])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
