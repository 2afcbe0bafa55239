"""``--beyond``: the behaviour of a model past the trained length of its tables."""

from torch import nn

from posexport.base.spec import Beyond
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError


def extend(module: nn.Module, beyond: Beyond, length: int | None = None, *, overhead: int = 0) -> None:
    """Replace every encoding in ``module`` by its clipped or interpolated form, a shared one by a shared one.

    For a model with its weights loaded. ``length``: positions to stretch tables to, for ``interpolate`` only.
    ``overhead``: table rows at the start that no real token uses (`posexport.nn.position_ids`). ``error`` changes
    nothing. Raises PosexportError, and leaves the model as it was, where the choice fits no encoding, or not all.
    """
    if beyond == "error":
        return
    if (length is not None) != (beyond == "interpolate"):
        usage = "needs --max-length" if length is None else f"takes no --max-length, got {length}: it has no limit"
        raise PosexportError(f"--beyond {beyond} {usage}")
    modules = [(p, m) for p, m in module.named_modules(remove_duplicate=False) if isinstance(m, Encoding)]
    if not modules:
        raise PosexportError(f"--beyond {beyond} does not fit: the model holds no encoding of posexport")
    if isinstance(module, Encoding):
        raise PosexportError(
            f"--beyond {beyond} is for a model that holds encodings, got the encoding {module.name} itself"
        )
    distinct = {id(old): old for _, old in modules}
    fresh = {
        key: old.clipped() if length is None else old.interpolated(length, overhead=overhead)
        for key, old in distinct.items()
    }
    parents = [module.get_submodule(path.rpartition(".")[0]) for path, _ in modules]
    for parent, (path, old) in zip(parents, modules, strict=True):
        setattr(parent, path.rpartition(".")[2], fresh[id(old)])
