"""Options that several records have, each written once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from posexport.options.option import EXPERT, PROOF, RUNTIME, SOURCE, Option
from posexport.targets.precisions import PrecisionName
from posexport.targets.provider_options import CUDA_OPTIONS
from posexport.targets.providers import PROVIDERS

#: called with the finished steps, their total, and the current step
Progress = Callable[[int, int, str], None]
#: called with sentences for the user
Remark = Callable[[str], None]

Task = Annotated[
    str | None,
    Option(
        group=SOURCE,
        complete="tasks",
        help="What the model is for, see posexport list tasks; default: from the checkpoint.",
    ),
]
Settings = Annotated[
    Mapping[str, Any] | Sequence[str] | None,
    Option(
        group=SOURCE,
        flag="set",
        metavar="KEY=VALUE",
        complete="settings",
        help="Set a parameter of a built-in model or an encoding, e.g. --set layers=4 (repeatable); see posexport list "
        "models.",
        python='Parameters of a built-in model, such as ``{"layers": 4, "clip": 8}``; see posexport list models.',
    ),
]
AllowPickle = Annotated[
    bool, Option(group=EXPERT, help="Also read .bin weights (with weights_only; safetensors are preferred).")
]
ExampleInputs = Annotated[
    Any, Option(python="Of a module: tensors by the names of ``forward``'s arguments, or a tuple in their order.")
]
Axes = Annotated[
    Mapping[str, Sequence[str | int]] | None,
    Option(
        python="Of a module, by input: names of the axes that vary, sizes of the others; needed where the first "
        'two axes are not batch and sequence. ``{"x": ["batch_size", "sequence_length", 16]}``'
    ),
]
Lengths = Annotated[
    Sequence[int] | None,
    Option(
        group=PROOF,
        flag="length",
        metavar="N",
        least=1,
        help="Tokens of a call that is checked, in place of the default grid (repeatable).",
        python='Check these lengths in tokens in place of the grid\'s; the verdict is then "checked", not "proven".',
    ),
]
Threads = Annotated[
    int,
    Option(
        group=PROOF,
        metavar="N",
        least=0,
        most=1024,
        show_default=False,
        help="Threads of one operator; 0 lets the runtime choose.",
    ),
]
Provider = Annotated[
    str,
    Option(group=RUNTIME, help=f"Execution provider: {', '.join(PROVIDERS)}. Fails if it is not available."),
]
ProviderOptions = Annotated[
    Mapping[str, Any] | None,
    Option(
        group=RUNTIME,
        flag="provider-option",
        metavar="KEY=VALUE",
        help=f"Of the provider's session (repeatable); of cuda: {', '.join(CUDA_OPTIONS)}.",
        python='Of ``cuda``: ``memory_limit`` ("4GB"), ``arena_growth`` ("double" or "exact"), ``tf32`` (True or '
        "False), ``stream`` (a cudaStream_t as an integer), ``graph`` (True: calls are CUDA graphs; not of verify). "
        "``cpu`` has none.",
    ),
]
PrecisionOfBundle = Annotated[
    PrecisionName | None,
    Option(group=RUNTIME, help="Precision of the model that runs, of a bundle with several; default: its first."),
]
ProgressCall = Annotated[
    Progress | None, Option(python="Called with the finished steps, their total, and the current step.")
]
RemarkCall = Annotated[Remark | None, Option(python="Called with sentences about the source and the proof.")]
