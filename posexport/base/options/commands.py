"""Options that several commands share, and those of ``verify``, `posexport.load` and `posexport.pipeline`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from posexport.base.options.option import EXPERT, GRAPH, OUTPUT, PROOF, RULES, RUNTIME, SOURCE, Option, StrPath
from posexport.base.options.recipe import DefinitionName
from posexport.base.targets.listed import audited
from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.provider_options import CUDA_OPTIONS
from posexport.base.targets.providers import DEFAULT_PROVIDER, PROVIDERS, targets
from posexport.base.targets.target import target_names

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
Adapters = Annotated[
    Mapping[str, StrPath] | Sequence[str] | None,
    Option(
        group=SOURCE,
        metavar="NAME=DIR",
        help="Keep a LoRA adapter of PEFT beside the model, for rows that choose it by this name (repeatable).",
        python='Folders of LoRA adapters to keep beside the model, ``{"query": "path/to/query"}``; each row of a batch '
        "chooses one or none.",
    ),
]
DropWeights = Annotated[
    Sequence[str],
    Option(
        group=EXPERT,
        metavar="PATTERN",
        help="Leave out the tensors of a checkpoint that match, such as 'cls.species.*': a head that the task does not "
        "need (repeatable).",
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
Proof = Annotated[
    Literal["auto", "full", "reduced"],
    Option(
        group=PROOF,
        help="full: the grid on the model itself; reduced: on a few of its layers, the file by its structure, its "
        "weights and a few calls; auto: reduced from 16 million weights on, where layers repeat.",
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
        help="Threads of one operator; 0: the least of cores, affinity, cgroup quota and OMP_NUM_THREADS.",
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
        help=f"Of the provider's session (repeatable); of cuda: {', '.join(CUDA_OPTIONS)}; of openvino: precision.",
        python='Of ``cuda``: ``memory_limit`` ("4GB"), ``arena_growth`` ("double" or "exact"), ``tf32`` (True or '
        "False), ``stream`` (a cudaStream_t as an integer), ``graph`` (True: calls are CUDA graphs; not of verify). "
        'Of ``openvino``: ``precision`` ("fp32" or "bf16"). ``cpu`` has none.',
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


class OpenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a bundle is opened."""

    precision: PrecisionOfBundle = None
    provider: Provider = DEFAULT_PROVIDER
    threads: Threads = 0
    memory: Annotated[
        Literal["flat", "fast"],
        Option(
            group=RUNTIME,
            help="flat: a call of more than 4,096 tokens gives back the memory that it took, so that one large batch "
            "does not hold it for ever; fast: everything is kept for the next call.",
        ),
    ] = "flat"
    check: Annotated[bool, Option(group=RUNTIME, help="Compare every file with its sha256 first.")] = True
    provider_options: ProviderOptions = None


#: the headings of ``posexport verify --help``, in their order
GROUPS = (SOURCE, PROOF, RUNTIME, EXPERT)


class ParityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a check on one provider or several."""

    task: Task = None
    settings: Settings = None
    definition: Annotated[
        DefinitionName | None,
        Option(
            group=SOURCE,
            help="How the source computes, as in posexport convert; default: as the bundle was converted, else paper.",
        ),
    ] = None
    allow_pickle: AllowPickle = False
    drop_weights: DropWeights = ()
    adapters: Adapters = None
    example_inputs: ExampleInputs = None
    axes: Axes = None
    lengths: Lengths = None
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
    precision: PrecisionOfBundle = None
    threads: Threads = 0


class VerifyOptions(ParityOptions, frozen=True, kw_only=True):
    """The options of `posexport.verify`."""

    proof: Proof = "auto"
    provider: Provider = DEFAULT_PROVIDER
    provider_options: ProviderOptions = None
    progress: ProgressCall = None
    remark: RemarkCall = None


#: the headings of ``posexport audit --help``
AUDIT_GROUPS = (RULES, RUNTIME)


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `posexport.audit`."""

    select: Annotated[
        Sequence[str],
        Option(
            group=RULES,
            metavar="CODE",
            complete="rules",
            help="Only rules whose code starts with CODE: PX101, PX2 (repeatable).",
        ),
    ] = ()
    ignore: Annotated[
        Sequence[str],
        Option(
            group=RULES, metavar="CODE", complete="rules", help="Not rules whose code starts with CODE (repeatable)."
        ),
    ] = ()
    provider: Annotated[
        str | Sequence[str],
        Option(
            group=RUNTIME,
            words=lambda: tuple(audited()),
            help=f"The execution provider that the file is for: {', '.join(audited())}; with --run, others to compare "
            "with it (repeatable).",
        ),
    ] = DEFAULT_PROVIDER
    against: Annotated[
        StrPath | None,
        Option(
            group=RULES,
            metavar="CHECKPOINT",
            help="Compare weights with those of this folder or .safetensors file (rules PX6), then prove the graph "
            "against it, which needs PyTorch (--ignore PX604: weights alone).",
        ),
    ] = None
    run: Annotated[
        bool,
        Option(
            group=RUNTIME,
            help="Also run the graph, in a child process with limits: what padding, the batch and the cut into calls "
            "should not change (rules PX7).",
        ),
    ] = False
    timeout: Annotated[
        float,
        Option(group=RUNTIME, metavar="SECONDS", least=1, help="Of --run: time for all calls of a file."),
    ] = 120
    memory: Annotated[str, Option(group=RUNTIME, metavar="SIZE", help="Of --run: memory of the child process.")] = "4GB"

    @property
    def providers(self) -> Sequence[str]:
        """The execution providers, the file's first."""
        return [self.provider] if isinstance(self.provider, str) else list(self.provider) or [DEFAULT_PROVIDER]


#: the headings of ``posexport optimize --help``
OPTIMIZE_GROUPS = (GRAPH, OUTPUT, PROOF)


class OptimizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `posexport.optimize`."""

    target: Annotated[
        str,
        Option(
            group=GRAPH,
            words=target_names,
            help=f"portable: standard operators only; {', '.join(targets())}: for that provider of ONNX Runtime alone.",
        ),
    ] = DEFAULT_PROVIDER
    precision: Annotated[
        PrecisionName, Option(group=GRAPH, help="Of weights and activations; inputs and outputs keep their types.")
    ] = "fp32"
    force: Annotated[bool, Option(group=OUTPUT, help="Replace an existing file.")] = False
    bench: Annotated[bool, Option(group=PROOF, help="Time calls of both files, on one thread.")] = False
    timeout: Annotated[float, Option(group=PROOF, metavar="SECONDS", least=1, help="Time for all calls of a file.")] = (
        300
    )
    memory: Annotated[str, Option(group=PROOF, metavar="SIZE", help="Memory of a process that calls a file.")] = "8GB"
