"""Loads a source, and applies the options that change what it is: ``--max-length``, ``--cache``, ``--static`` ..."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from posexport.base.options.recipe import CacheName, CachePrecision, Recipe, RotationName
from posexport.base.spec import Beyond
from posexport.encodings.beyond import extend as extend_encodings
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.definition import Definition
from posexport.models.forward_decoder import ForwardDecoder
from posexport.models.with_prefix import WithPrefix
from posexport.nn.caching import CACHES, Caching
from posexport.run.tokenizer.byte_pair import with_tokenizer
from posexport.sources.embeddings_input import with_embeddings
from posexport.sources.layer_outputs import with_outputs
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.registry import opener_of
from posexport.sources.source import Source
from posexport.sources.static_sizes import sizes_of, with_int32, with_static_sizes


def with_limit(source: Source, beyond: Beyond, max_length: int | None) -> Source:
    """A source with the limit that was chosen; where encodings change with it, its module shares weights with the old.

    Raises:
        PosexportError: the choice does not fit the encoding, or the length does not fit the choice.
    """
    old = source.limits
    if beyond != "error":
        _check_no_prefix(source, f"--beyond {beyond}")
    if max_length is not None and max_length < old.min_length:
        raise PosexportError(f"--max-length {max_length} is below the model's smallest input, {old.min_length}")
    module, parts = source.module, source.parts
    if beyond == "error":
        limit = _limit(source, max_length)
    else:
        module, limit = _extended(source, beyond, max_length), max_length
        parts = module.parts if isinstance(module, Definition) else parts
    inside = sorted({b for b in [*old.boundaries, *([limit] if limit else [])] if limit is None or b <= limit})
    return msgspec.structs.replace(
        source,
        module=module,
        parts=parts,
        # position ids have the same end
        inputs=[msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in source.inputs],
        limits=msgspec.structs.replace(old, max_length=limit, beyond=beyond, boundaries=inside),
    )


def _limit(source: Source, max_length: int | None) -> int | None:
    """The longest input of a model that is to end where its tables end, or before."""
    limit = source.limits.max_length
    if max_length is None or limit is None or max_length <= limit:
        return max_length or limit
    if source.by_trial:
        raise PosexportError(
            f"--max-length {max_length} is beyond the {limit} tokens that {source.name} takes; give at "
            "most that, or make its tables longer"
        )
    raise PosexportError(
        f"--max-length {max_length} is beyond the table of {limit} positions; "
        "choose what happens there with --beyond clip or --beyond interpolate"
    )


def _extended(source: Source, beyond: Beyond, max_length: int | None) -> nn.Module:
    """The module with clipped or interpolated encodings."""
    limit = source.limits.max_length
    if limit is None:
        raise PosexportError(f"--beyond {beyond} has nothing to do: {source.name} takes inputs of any length already")
    if all(submodule.limit is None for submodule in source.module.modules() if isinstance(submodule, Encoding)):
        raise PosexportError(
            f"--beyond {beyond} has nothing to change: {source.name} ends at {limit} positions because its "
            "configuration says so, not because a table ends; leave it out"
        )
    if beyond == "interpolate" and (max_length is None or max_length <= limit):
        got = "none" if max_length is None else str(max_length)
        raise PosexportError(
            f"--beyond interpolate needs a --max-length above the table's {limit} positions, got {got}"
        )
    module = copy_with_same_weights(source.module)
    positions = max_length if beyond == "interpolate" else None
    extend_encodings(module, beyond, positions, overhead=source.promises.position_offset)
    return module


def with_kv_cache(
    source: Source, cache: CacheName, rotation: RotationName, precision: CachePrecision = "model"
) -> Source:
    """A source with the KV cache that was chosen; its module shares its weights with the old one's.

    Raises:
        PosexportError: the source is no decoder with a KV cache, or its encoding rotates nothing.
    """
    if (cache, rotation, precision) == ("dynamic", "at-write", "model"):
        return source
    option = f"--cache {cache}" if cache != "dynamic" else f"--rotation {rotation}"
    if precision != "model":
        option = f"--cache-precision {precision}"
    module = source.module
    _check_no_prefix(source, option)
    if not isinstance(module, Definition) or not source.limits.kv_cache:
        raise PosexportError(f"{option} needs a decoder with a cache; {source.name} is for {source.task}: leave it out")
    if precision == "int8" and isinstance(module, ForwardDecoder):
        raise PosexportError(
            f"{option} rounds keys and values where a layer writes them, and the KV cache of {source.name} is inserted "
            "into its graph; use posexport.nn.Attention in its layers, or leave it out"
        )
    if precision == "int8" and getattr(module, "judged_by_forward", False):
        raise PosexportError(
            f"{option}: the proof compares {source.name}, which keeps states, with its own forward, which rounds no "
            "keys and values; leave it out"
        )
    module = copy_with_same_weights(module)
    decoders: list[Any] = [submodule for submodule in module.modules() if _keeps_a_cache(submodule)]
    if rotation == "at-read" and not any(type(e).rotate is not Encoding.rotate for d in decoders for e in d.encodings):
        raise PosexportError(
            f"--rotation at-read has nothing to do: no layer of {source.name} rotates keys; leave it out"
        )
    for decoder in decoders:
        decoder.caching = Caching(CACHES[cache](), rotation, rounds=precision == "int8")
    # position ids end where the inputs do
    limit = source.limits.max_length
    inputs = [msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in module.inputs]
    limits = msgspec.structs.replace(source.limits, trace_sizes=module.plan.trace_sizes)
    return msgspec.structs.replace(
        source, module=module, inputs=inputs, outputs=module.outputs, parts=module.parts, limits=limits
    )


def _check_no_prefix(source: Source, option: str) -> None:
    if isinstance(source.module, WithPrefix):
        raise PosexportError(
            f"{option} would change the keys of the virtual tokens before {source.name}, which are constants; leave it "
            "out"
        )


def _keeps_a_cache(submodule: nn.Module) -> bool:
    """Whether ``submodule.caching`` can be set; of a model it is a property that reads its decoder's."""
    return hasattr(submodule, "caching") and not isinstance(getattr(type(submodule), "caching", None), property)


def prepare(
    argument: str | nn.Module,
    options: LoadOptions,
    recipe: Recipe | None = None,
    tokenizer: Path | None = None,
    *,
    lazy: bool = False,
) -> Source:
    """The source called ``argument`` with the limit, KV cache, rotation, outputs and sizes of ``recipe``.

    ``tokenizer``: a tokenizer.json for a source that has none. ``lazy``: as of `load_source`.

    Raises:
        PosexportError: the source cannot be loaded, or an option does not fit it.
    """
    # other tables of positions are computed from the module's
    source = load_source(argument, options, lazy=lazy and (recipe is None or recipe.beyond == "error"))
    if recipe is not None:
        source = with_limit(source, recipe.beyond, recipe.max_length)
        source = with_kv_cache(source, recipe.cache, recipe.rotation, recipe.cache_precision or "model")
        source = with_outputs(source, recipe.outputs or ())
        source = with_embeddings(source) if recipe.input == "embeddings" else source
        source = with_static_sizes(source, sizes_of(recipe.static_sizes or ()))
        source = with_int32(source) if recipe.int32 else source
        if recipe.first_output:
            _check_first_output(source, recipe.first_output)
    if tokenizer is not None:
        source = with_tokenizer(source, tokenizer)
    return source


def _check_first_output(source: Source, name: str) -> None:
    """Raises PosexportError if ``source`` has several graphs, or no output of that name."""
    if source.parts:
        files = ", ".join(graph.file for graph in source.part_specs)
        raise PosexportError(f"--first-output is for models of one graph, {source.name} is {files}: leave it out")
    names = [spec.name for spec in source.outputs]
    if name not in names:
        known = " or ".join(names[:4]) + (f" .. ({len(names)})" if len(names) > 4 else "")
        raise PosexportError(f"--first-output {name}: {source.name} has no such output; name {known}")


def recorded_options(
    record: dict[str, Any], options: LoadOptions, argument: str | nn.Module, *, kind: str, name: str
) -> LoadOptions:
    """``options`` for loading ``argument``, completed by the recorded options of a bundle's source.

    An option that the user states counts, False too. ``kind`` and ``name`` describe the recorded source: settings are
    reused for the same built-in model only, the task for the same kind of source.
    """
    known = {f.name: record[f.name] for f in fields(LoadOptions) if f.name in record and f.name != "adapters"}
    if (names := record.get("adapters", ())) and [name for name, _ in options.adapters] != [*names]:
        given = " ".join(f"--adapters {name}=DIR" for name in names)
        raise PosexportError(f"{name} was converted with LoRA adapters; give their folders in this order: {given}")
    known["settings"] = tuple(f"{key}={value}" for key, value in known.get("settings", {}).items())
    known["drop_weights"] = tuple(known.get("drop_weights", ()))
    if kind not in opener_of(argument).kinds or (kind == "builtin" and argument != name):
        known = {key: value for key, value in known.items() if key not in ("task", "settings", "drop_weights")}
    return replace(options, **{key: value for key, value in known.items() if getattr(options, key) in (None, ())})
