"""A kind of built-in model: its settings, the encodings that it accepts, its constructor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posexport.encodings.encoding import Encoding, Entry
from posexport.models.definition import Definition
from posexport.nn.config import Config


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One ``<definition>`` of the names ``<definition>-<encoding>``.

    Attributes:
        what: one line for ``posexport list models``.
        config: the record of its settings (``--set``), the argument of ``make``.
        defaults: values of settings that the user does not set, where they differ from the dataclass's defaults.
        tasks: values of ``--task``; the first one is the default.
        takes: whether an encoding makes sense in it.
        sizes: from the settings to what an encoding's constructor may ask for (hidden, heads, head_size ...).
        make: settings, encoding, task and number of labels to the model.
    """

    name: str
    what: str
    config: type[Config]
    defaults: Mapping[str, Any]
    tasks: Mapping[str, str]
    takes: Callable[[Entry], bool]
    sizes: Callable[[Any], dict[str, int]]
    make: Callable[[Any, Encoding, str, int], Definition]
