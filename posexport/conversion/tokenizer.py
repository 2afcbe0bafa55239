"""The tokenizer of a bundle: a tokenizer.json that alone gives the ids of the checkpoint's tokenizer."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from posexport.base.spec import compared_outputs
from posexport.base.system.scratch import scratch_folder
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.tokenizer.make import Model, make_tokenizer
from posexport.run.tokenizer.settings import CONFIG, TOKENIZER

#: of the largest value: rounding in float64 changes less
_ROUNDED = 1e-9

if TYPE_CHECKING:
    from posexport.sources.source import Source


def with_tokenizer_made(source: "Source", directory: Path) -> "tuple[Source, str | None]":
    """``source`` with the tokenizer.json of its bundle, and the manifest's ``tokenizer``: how its ids were checked.

    The file is written into ``directory``. Remarks name what was changed or not followed. None without a tokenizer.
    """
    if not any(spec.role == "tokens" for graph in source.graphs.values() for spec in graph.inputs):
        return source, None
    rules = [rule.max_length for rule in (source.text_rules, source.pair_rules) if rule is not None]
    longest = source.limits.max_length
    cuts = [length for length in (*rules, longest if rules else None) if length is not None]
    model = Model(
        rows=next((spec.size for spec in source.inputs if spec.role == "tokens"), None),
        cut=min(cuts, default=None),
        longest=longest,
        generates=source.limits.kv_cache or bool(source.parts),
        takes_types=any(spec.role == "types" for spec in source.inputs),
        takes_pairs=source.text_rules is None or source.pair_rules is not None,
        left_padding_counts=partial(_left_padding_counts, source),
    )
    result = make_tokenizer(source.files, model, render)
    files = dict(source.files)
    if result.data is not None:
        files[TOKENIZER] = directory / TOKENIZER
        files[TOKENIZER].write_bytes(result.data)
    if result.config is not None:
        files[CONFIG] = scratch_folder() / CONFIG  # to be copied without paths of this machine
        files[CONFIG].write_bytes(result.config)
    text_rules = source.text_rules
    if result.cut is not None and text_rules is not None:
        text_rules = msgspec.structs.replace(text_rules, max_length=result.cut)
    remarks = [*source.remarks, *result.remarks]
    return msgspec.structs.replace(source, files=files, text_rules=text_rules, remarks=remarks), result.checked


def _left_padding_counts(source: "Source") -> bool:
    """Whether padding before a row changes its outputs: promised not to, or tried on the definition in float64."""
    promises = source.promises
    if promises.shift_invariant and not promises.reads_first_token and "left" in source.limits.paddings:
        return False
    import torch

    from posexport.proof.invariants.padded_rows import padded_left
    from posexport.proof.references.precision_copy import PrecisionCopy
    from posexport.proof.subjects.runner import whole

    rows = padded_left(source)
    if rows is None:
        return False
    run = whole(PrecisionCopy(source.module, torch.float64, outputs=len(source.outputs), share=True), source)
    changes = rows.changes(run, source.inputs, compared_outputs(source))
    return any(measured.error > _ROUNDED for _, measured in changes)


def render(folder: Path, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The chat template of ``folder`` applied by the runtime's code; None if the folder has no template."""
    from posexport.run.chat import Chat

    files = {path.name: None for path in folder.iterdir()}
    try:
        return Chat(folder, cast(Manifest, SimpleNamespace(files=files))).render(messages)
    except PosexportError:
        return None
