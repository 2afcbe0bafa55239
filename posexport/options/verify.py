"""The options of ``posexport verify``, `posexport.verify` and `posexport.testing.assert_parity`."""

from typing import Annotated, Literal

import msgspec

from posexport.options import shared
from posexport.options.option import EXPERT, PROOF, RUNTIME, SOURCE, Option
from posexport.options.recipe import DefinitionName
from posexport.targets.providers import DEFAULT_PROVIDER

#: the headings of ``posexport verify --help``, in their order
GROUPS = (SOURCE, PROOF, RUNTIME, EXPERT)


class ParityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a check on one provider or several."""

    task: shared.Task = None
    settings: shared.Settings = None
    definition: Annotated[
        DefinitionName | None,
        Option(
            group=SOURCE,
            help="How the source computes, as in posexport convert; default: as the bundle was converted, else paper.",
        ),
    ] = None
    allow_pickle: shared.AllowPickle = False
    example_inputs: shared.ExampleInputs = None
    axes: shared.Axes = None
    lengths: shared.Lengths = None
    tolerance: Annotated[
        float | None,
        Option(
            group=PROOF,
            metavar="ERROR",
            help="Pass where max |y - y64| / max |y64| is at most this, such as 1e-3; the verdict is then not "
            "'proven'.",
            python="The largest error ``max |y - y64| / max |y64|`` that passes, in place of the criterion. The "
            'verdict is then "within 0.001", never "proven".',
        ),
    ] = None
    emulate: Annotated[
        Literal["fp16", "bf16"] | None,
        Option(
            group=PROOF,
            help="Round every operator's output to this precision, as a GPU would; of a float32 model positions too.",
        ),
    ] = None
    precision: shared.PrecisionOfBundle = None
    threads: shared.Threads = 0


class VerifyOptions(ParityOptions, frozen=True, kw_only=True):
    """The options of `posexport.verify`."""

    provider: shared.Provider = DEFAULT_PROVIDER
    provider_options: shared.ProviderOptions = None
    progress: shared.ProgressCall = None
    remark: shared.RemarkCall = None
