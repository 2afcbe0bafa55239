"""ONNX Runtime's execution providers, a record each: what graphs and sessions for a provider depend on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posexport.errors import PosexportError
from posexport.targets import cuda, plugins
from posexport.targets.dtypes import DType
from posexport.targets.provider_options import CUDA_OPTIONS, ProviderOption, ort_options

#: of ONNX, by which `Provider.computes` asks: MatMul has had one version since
_OPSET = 13
#: the device of the host's memory, as ONNX Runtime calls it
HOST = "cpu"


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One execution provider.

    Attributes:
        name: what ``--target`` and ``--provider`` accept.
        label: what sentences call it.
        ort_name: ONNX Runtime's name for it.
        package: the wheel that is built with it, or of a plug-in that wheel.
        extra: of posexport, which installs it.
        plugin: the module of a wheel that brings it to plain ONNX Runtime; empty where there is none.
        is_target: graphs can be converted for it; else it runs portable ones.
        options: of every session on it.
        choices: what users may choose of a session, by name.
        device: where its nodes keep their outputs, as ONNX Runtime calls it (`HOST`: the host's memory).
        built_in: every build of ONNX Runtime has it, and it always loads.
        types: names of the element types that it computes in, where no kernel table says so.
        widened: names of element types whose nodes it computes in float32, with casts before and after them.
        preferred: by family of lowerings (`posexport.lowering.plan`), their names in order of preference; a family
            that is not named keeps its own order.
        unprofitable: graph passes that apply and are left out for it -> why.
        accuracy_level: of MatMulNBits, and of those that sessions make of DequantizeLinear and MatMul; 4: activations
            become int8 in its kernels, 0: they stay as they are.
        integers_on_host: its kernels are of real numbers; nodes that give integers or truth values run on the host.
        takes_defaults: inputs may be left out that the graph has a value for; else all are asked for.
        threads_option: ONNX Runtime's option that takes the number of threads, where it has a pool of its own.
        bias_multiples: name of an element type -> of what queries and keys must be a multiple, so that attention with a
            bias is fused.
        prepare: called before a session is made.
        load_failure: what ONNX Runtime raised -> why the provider does not load and what to do, where that is known.
    """

    name: str
    label: str
    ort_name: str
    package: str
    extra: str = ""
    plugin: str = ""
    is_target: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, ProviderOption] = field(default_factory=dict)
    device: str = HOST
    built_in: bool = False
    types: frozenset[str] = frozenset()
    widened: frozenset[str] = frozenset()
    preferred: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unprofitable: Mapping[str, str] = field(default_factory=dict)
    accuracy_level: int = 0
    integers_on_host: bool = False
    takes_defaults: bool = True
    threads_option: str = ""
    bias_multiples: Mapping[str, int] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None
    load_failure: Callable[[str], str | None] = lambda _: None

    def told(self, given: Mapping[str, Any] | None) -> dict[str, str]:
        """ONNX Runtime's options of a session for which users chose ``given``; PosexportError for a bad choice."""
        return {**self.options, **ort_options(self.label, self.choices, given)}

    def pool(self, threads: int) -> dict[str, str]:
        """ONNX Runtime's options for so many threads, where the provider has a pool of its own; 0: it decides."""
        return {self.threads_option: str(threads)} if self.threads_option and threads else {}

    @property
    def install(self) -> str:
        """What to do where it is not installed."""
        return f"pip install 'posexport[{self.extra}]'" if self.extra else f"install {self.package} in its place"

    @property
    def waits_to_branch(self) -> bool:
        """The host waits for the device before it takes a branch of an ``If`` whose condition was computed there."""
        return self.device != HOST

    def computes(self, dtype: DType) -> bool:
        """Whether it computes graphs of that floating-point type in that type: it multiplies matrices of it."""
        return dtype.name in self.types or self.has_kernel("MatMul", "", _OPSET, dtype)

    def loads(self, dtype: DType) -> bool:
        """Whether graphs of that floating-point type run on it, in that type or in float32."""
        return dtype.name in self.widened or self.computes(dtype)

    def has_kernel(self, operator: str, domain: str, opset: int, dtype: DType) -> bool:
        """Whether it computes nodes of ``operator`` in ``dtype`` itself, by the kernel table.

        ``opset``: the version of ``domain`` that the graph imports.
        """
        from posexport.targets import kernels

        return kernels.has_kernel(self.ort_name, operator, domain, opset, dtype)


PROVIDERS: dict[str, Provider] = {}


def register(provider: Provider) -> Provider:
    """Make a provider known by its name; ValueError where the name is taken."""
    if provider.name in (*PROVIDERS, "portable"):
        raise ValueError(f"there is a provider or target {provider.name} already")
    PROVIDERS[provider.name] = provider
    return provider


CPU = register(
    Provider(
        name="cpu",
        label="the CPU",
        ort_name="CPUExecutionProvider",
        package="onnxruntime",
        built_in=True,
        widened=frozenset({"float16"}),
        accuracy_level=4,
        # measured with onnxruntime 1.31, 768 channels; without means (RMSNormalization) 1 to 4 times
        unprofitable={
            "skip-norm": "its CPU kernel takes 2 to 5 times as long as Add and LayerNormalization, and sums one by one "
            "in float32"
        },
    )
)
CUDA = register(
    Provider(
        name="cuda",
        label="CUDA",
        ort_name="CUDAExecutionProvider",
        package="onnxruntime-gpu",
        # TF32 keeps 10 bits of a factor's 23: PyTorch leaves it off for matrix products too
        options={"use_tf32": "0"},
        choices=CUDA_OPTIONS,
        device="cuda",
        preferred={
            "attention": ("group-query", "filled-slots", "kept-keys", "static", "multi-head", "attention", "formula")
        },
        unprofitable={
            "packed-projections": "not measured on CUDA",
            "flat-tokens": "on CUDA SkipLayerNormalization is one kernel for a sum, a bias and a normalisation",
        },
        # of MultiHeadAttention; cuDNN's kernels, for newer cards, take any
        bias_multiples={"float16": 8, "bfloat16": 8, "float32": 16},
        prepare=cuda.preload,
        load_failure=cuda.load_failure,
    )
)
WEBGPU = register(
    Provider(
        name="webgpu",
        label="WebGPU",
        ort_name="WebGpuExecutionProvider",
        package="onnxruntime-ep-webgpu",
        extra="webgpu",
        plugin="onnxruntime_ep_webgpu",
        is_target=False,
        # float16 where the adapter has shader-f16: a session on another one does not open
        types=frozenset({"float32", "float16"}),
        integers_on_host=True,
        load_failure=plugins.no_device("a GPU with a driver for Vulkan, Metal or Direct3D 12"),
    )
)
OPENVINO = register(
    Provider(
        name="openvino",
        label="OpenVINO",
        ort_name="OpenVINOExecutionProvider",
        package="onnxruntime-ep-openvino",
        extra="openvino",
        plugin="onnxruntime_ep_openvino",
        is_target=False,
        # left alone, it computes in bfloat16 on processors that have it: an error of 0.7% of the largest element
        options={"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'},
        types=frozenset({"float32"}),
        widened=frozenset({"float16"}),
        takes_defaults=False,
        threads_option="num_of_threads",
        load_failure=plugins.no_device(
            "an Intel processor (on another one pip install onnxruntime-openvino in place of onnxruntime)"
        ),
    )
)
#: the provider where nobody asks for one
DEFAULT_PROVIDER = CPU.name


def targets() -> dict[str, Provider]:
    """Those that graphs can be converted for, by name."""
    return {name: provider for name, provider in PROVIDERS.items() if provider.is_target}


def provider_named(name: str) -> Provider:
    """The provider that users call ``name``; PosexportError lists the known ones."""
    if name not in PROVIDERS:
        raise PosexportError(f"unknown provider {name!r}; known: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]
