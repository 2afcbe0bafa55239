"""Built-in models, ``<definition>-<encoding>``, with seeded random weights."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from posexport.base.options.check import did_you_mean
from posexport.base.options.settings import convert
from posexport.base.tasks.registry import did_you_mean_task
from posexport.encodings.build import build
from posexport.encodings.build import settings as settings_of
from posexport.encodings.encoding import ENCODINGS
from posexport.errors import PosexportError
from posexport.sources import settings, source
from posexport.sources.definitions import KINDS
from posexport.sources.definitions.kind import Kind
from posexport.sources.source import Source, model_of

MAX_POSITIONS = 128
LABELS = 3
#: Of any setting: above every real size, and low enough that sizes multiply without overflow.
LARGEST = 1 << 24


def models() -> dict[str, tuple[Kind, str]]:
    """All built-in models by name, each with its kind and its encoding."""
    return {
        f"{kind.name}-{name}": (kind, name) for kind in KINDS for name, entry in ENCODINGS.items() if kind.takes(entry)
    }


def builtin_source(name: str, *, task: str | None, settings_given: tuple[str, ...]) -> Source:
    """The model called ``name``, sized by ``--set`` pairs.

    Raises:
        PosexportError: an unknown name or setting, or a value that does not fit.
    """
    # the encoding of an installed package is loaded by its name, and is in `models` then
    for added in ENCODINGS.packages:
        if name.endswith(f"-{added}"):
            ENCODINGS.get(added)
    known = models()
    if name not in known:
        hint = did_you_mean(name, known, "see posexport list models")
        raise PosexportError(
            f"{name} is neither a directory, a Hub id (org/name), a file.py:factory nor a built-in model; {hint}"
        )
    kind, encoding_name = known[name]
    task = task or next(iter(kind.tasks))
    if task not in kind.tasks:
        hint = did_you_mean_task(task, kind.tasks, f"{name} is for {', '.join(kind.tasks)}")
        raise PosexportError(f"unknown task {task!r}; {hint}")
    stated = settings.parse(settings_given)
    chosen = settings.into(kind.config, stated)
    config = kind.config.of(**{**kind.defaults, **chosen})
    extra = {
        key: cast(int, convert(f"--set {key}", stated.get(key, str(default)), int))
        for key, default in (("seed", 0), ("labels", LABELS), ("max_positions", MAX_POSITIONS))
    }
    _check_sizes({**chosen, **extra})
    sizes = kind.sizes(config)
    if stated.get("head_size", str(sizes["head_size"])) != str(sizes["head_size"]):
        raise PosexportError(
            f"--set head_size={stated['head_size']}: a head has hidden / heads = {sizes['head_size']}; "
            "set those instead"
        )
    # a setting of the definition is one of its encoding too, but for a width that the definition changes on the way
    for_encoding = {key: text for key, text in stated.items() if key not in sizes} | {
        key: str(size) for key, size in sizes.items()
    }
    encoding, used = build(encoding_name, {"max_positions": extra["max_positions"]}, for_encoding)
    names = setting_names(kind, settings_of(ENCODINGS[encoding_name]))
    settings.refuse_unknown(stated, [*dict.fromkeys((*names, *used))], name)
    module = kind.make(config, encoding, task, extra["labels"]).eval()
    source.draw(module, extra["seed"])
    return Source.of(model_of(module, task), name=name, kind="builtin", sha256=source.digest(module))


def setting_names(kind: Kind, of_encoding: Iterable[str]) -> list[str]:
    """What ``--set`` takes: settings that only the encoding has first, then the model's.

    ``of_encoding``: the arguments of the encoding's constructor.
    """
    of_model = (*kind.config.settings(), "seed", "labels", "max_positions")
    return [*(name for name in of_encoding if name not in (*of_model, "head_size")), *of_model]


def _check_sizes(sizes: Mapping[str, Any]) -> None:
    if sizes["labels"] < 1:
        raise PosexportError(f"labels must be at least 1, got {sizes['labels']}")
    for key, value in sizes.items():
        for size in value if isinstance(value, tuple) else (value,):
            if isinstance(size, int) and not -LARGEST <= size <= LARGEST:
                raise PosexportError(f"{key} must be at most {LARGEST}, got {size}")
