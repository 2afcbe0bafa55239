"""Converts a source to a bundle, in one precision or several."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from posexport.base.system.files import without_folders
from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.base.targets.providers import CPU, DEFAULT_PROVIDER, provider_named, targets
from posexport.conversion.options import ConvertOptions
from posexport.conversion.result import Conversion, MissedError, Written
from posexport.conversion.write import Job, write
from posexport.errors import PosexportError
from posexport.run.bundle.directory import check_target
from posexport.run.bundle.manifest import PARITY, SAMPLE
from posexport.run.bundle.write import seal, staged
from posexport.run.providers import check_loads

if TYPE_CHECKING:
    from torch import nn

    from posexport.proof.proof import Progress


def convert(
    argument: "str | nn.Module",
    output: Path,
    options: ConvertOptions | None = None,
    *,
    progress: "Progress | None" = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Conversion:
    """Convert ``argument`` to a bundle at ``output``: what `posexport.convert` does.

    ``remark`` is called with sentences about the source and the proof. A bundle that misses parity is not
    written, unless ``options.keep_failed``; what was at ``output`` before then stays.

    Raises:
        PosexportError: what cannot be done and why, in one sentence.
    """
    options = options or ConvertOptions()
    precisions = options.by_precision()
    variants: list[Written] = []
    provider, missing = _provider(options)  # or that it does not load would be known only after the export
    remarks: list[str] = []

    def tell(sentence: str) -> None:
        # several precisions of one source say the same of it
        if sentence not in remarks:
            remarks.append(sentence)
            remark(sentence)

    try:
        with ONE_AT_A_TIME, staged(output, force=options.force) as directory:
            precisions = [replace(options, provider=provider) for options in precisions]
            # another conversion may have written there meanwhile: it is known before the proof, which takes long
            free = partial(check_target, output, force=options.force)
            first, *variants = _into(directory, argument, precisions, progress, tell, before_proof=free)
            described = replace(first.manifest, remarks=[without_folders(sentence, argument) for sentence in remarks])
            manifest = seal(directory, described, [variant.manifest for variant in variants], (PARITY, SAMPLE))
            report = first.report
    except MissedError as missed:
        manifest, report = None, missed.report
    if missing and report is not None:
        proof = "proven" if manifest is not None and manifest.proven else "checked"
        tell(f"{proof} on {provider}; {missing}")
    by_precision = {variant.manifest.precision: variant for variant in variants}
    return Conversion(output, manifest, report, tuple(remarks), by_precision)


def _provider(options: ConvertOptions) -> tuple[str, str]:
    """The provider to prove on, and why it is not the target's; one that the options name must load."""
    if options.provider is not None:
        provider = provider_named(options.provider)
        if options.verify and not provider.built_in:
            check_loads(options.provider)
        return options.provider, ""
    record = targets().get(options.target, CPU)
    if record.built_in or not options.verify:
        return DEFAULT_PROVIDER, ""
    try:
        check_loads(record.name)
    except PosexportError as err:
        return DEFAULT_PROVIDER, f"{record.name} did not load here: {err}"
    return record.name, ""


def _into(
    directory: Path,
    argument: "str | nn.Module",
    precisions: Sequence[ConvertOptions],
    progress: "Progress | None",
    remark: Callable[[str], None],
    before_proof: Callable[[], None],
) -> list[Written]:
    """All of a bundle's files, in ``directory``, for every precision in turn."""
    from posexport.sources.transformers_model import as_checkpoint

    tokenizer = precisions[0].tokenizer
    with as_checkpoint(argument, tokenizer, live=precisions[0].example_inputs is not None) as (given, name):
        if name is not None and hasattr(tokenizer, "save_pretrained"):  # the folder has its files
            precisions = [replace(options, tokenizer=None) for options in precisions]
        return [
            write(
                Job(
                    directory=directory,
                    argument=given,
                    options=options,
                    progress=progress,
                    remark=remark,
                    name=name,
                    variant=options.record.name if index else None,
                    before_proof=before_proof,
                )
            )
            for index, options in enumerate(precisions)
        ]
