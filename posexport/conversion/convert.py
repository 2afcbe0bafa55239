"""A source to a bundle, in every precision asked for."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from posexport.bundle.manifest import PARITY, SAMPLE
from posexport.bundle.target import check_target
from posexport.bundle.write import seal, staged
from posexport.conversion.options import ConvertOptions
from posexport.conversion.result import Conversion, MissedError, Written
from posexport.conversion.write import write
from posexport.errors import PosexportError
from posexport.runtime.providers import check_loads
from posexport.system.one_at_a_time import ONE_AT_A_TIME
from posexport.targets.providers import CPU, DEFAULT_PROVIDER, provider_named, targets

if TYPE_CHECKING:
    from torch import nn

    from posexport.parity.proof import Progress


def convert(
    argument: "str | nn.Module",
    output: Path,
    options: ConvertOptions | None = None,
    *,
    progress: "Progress | None" = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Conversion:
    """Convert ``argument`` to a bundle at ``output``: what `posexport.convert` does.

    ``remark`` is told, in sentences, what a user should know beside the result. A bundle that misses parity is not
    written, unless ``options.keep_failed``; what was at ``output`` before then stays.

    Raises:
        PosexportError: what cannot be done and why, in one sentence.
    """
    options = options or ConvertOptions()
    each = options.each()
    variants: dict[str, Written] = {}
    provider, missing = _provider(options)  # or that it does not load would be known only after the export
    remarks: list[str] = []

    def tell(sentence: str) -> None:
        # several precisions of one source say the same of it
        if sentence not in remarks:
            remarks.append(sentence)
            remark(sentence)

    try:
        with ONE_AT_A_TIME, staged(output, force=options.force) as directory:
            each = [replace(one, provider=provider) for one in each]
            # another conversion may have written there meanwhile: it is known before the proof, which takes long
            free = partial(check_target, output, force=options.force)
            first, *others = _into(directory, argument, each, progress, tell, before_proof=free)
            manifest = seal(directory, first.manifest, [each.manifest for each in others], (PARITY, SAMPLE))
            report, variants = first.report, {each.manifest.precision: each for each in others}
    except MissedError as missed:
        manifest, report = None, missed.report
    if missing and report is not None:
        proof = "proven" if manifest is not None and manifest.proven else "checked"
        tell(f"{proof} on {provider}; {missing}")
    return Conversion(output, manifest, report, tuple(remarks), variants)


def _provider(options: ConvertOptions) -> tuple[str, str]:
    """The provider to prove on, and why it is not the target's own; one that was asked for must load."""
    if options.provider is not None:
        asked = provider_named(options.provider)
        if options.verify and not asked.built_in:
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
    each: Sequence[ConvertOptions],
    progress: "Progress | None",
    remark: Callable[[str], None],
    before_proof: Callable[[], None],
) -> list[Written]:
    """All of a bundle's files, in ``directory``, for every precision in turn."""
    from posexport.sources.transformers_model import as_checkpoint, name_of

    tokenizer = each[0].tokenizer
    with as_checkpoint(argument, tokenizer, live=each[0].example_inputs is not None) as named:
        if named is not argument and hasattr(tokenizer, "save_pretrained"):
            each = [replace(options, tokenizer=None) for options in each]
        name = None if named is argument else name_of(argument)
        return [
            write(
                directory,
                named,
                options,
                progress,
                remark,
                name=name,
                variant=options.record.name if index else None,
                before_proof=before_proof,
            )
            for index, options in enumerate(each)
        ]
