"""ONNX Runtime's execution providers, one record each: what graphs and sessions for a provider depend on."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posexport.base.registry import Registry
from posexport.base.system.extras import is_installed
from posexport.base.targets import cuda
from posexport.base.targets.dtypes import FLOAT32, DType
from posexport.base.targets.provider_options import (
    COMPUTES,
    CUDA_OPTIONS,
    OPENVINO_OPTIONS,
    ProviderOption,
    ort_options,
)
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from onnxruntime import OrtEpDevice


#: the first ONNX Runtime with SessionOptions.add_provider_for_devices
_SINCE = "1.24"
#: the error passed to `Provider.load_failure` if the provider lists no device
_NO_DEVICE = "no device"
#: by module: a library is registered once in a process
_registered: set[str] = set()


def is_plugin(provider: "Provider") -> bool:
    """Whether the provider's plug-in is installed."""
    return bool(provider.plugin) and is_installed(provider.plugin)


def devices(provider: "Provider") -> "list[OrtEpDevice]":
    """The first device of an installed plug-in, as a list for ``add_provider_for_devices``.

    Raises PosexportError if the provider has no device here, or the installed ONNX Runtime takes no plug-ins.
    """
    import onnxruntime

    if not hasattr(onnxruntime.SessionOptions, "add_provider_for_devices"):
        raise PosexportError(
            f"{provider.ort_name} was asked for: its plug-in {provider.package} needs onnxruntime {_SINCE} or newer, "
            f"{onnxruntime.__version__} is installed; upgrade it"
        )
    if provider.plugin not in _registered:
        module: Any = importlib.import_module(provider.plugin)
        try:
            onnxruntime.register_execution_provider_library(provider.ort_name, module.get_library_path())
        except Exception as err:  # onnxruntime's exceptions share no base class but Exception
            raise PosexportError(f"{provider.ort_name} was asked for and did not load: {err}") from err
        _registered.add(provider.plugin)
    available = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider.ort_name]
    if not available:
        reason = provider.load_failure(_NO_DEVICE) or "it finds nothing to compute on"
        raise PosexportError(f"{provider.ort_name} was asked for and did not load: {reason}")
    return available[:1]


def no_device(needed: str) -> Callable[[str], str | None]:
    """The ``load_failure`` of a plug-in provider without a device: names the hardware it needs."""

    def reason(error: str) -> str | None:
        return f"it finds no device here; it needs {needed}" if error == _NO_DEVICE else None

    return reason


#: the opset at which `Provider.computes` looks up MatMul, unchanged since
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
        package: the wheel of ONNX Runtime with this provider, or of the plug-in.
        extra: the extra of posexport that installs it.
        plugin: the module of the plug-in wheel; empty for a provider compiled into ONNX Runtime.
        is_target: graphs can be converted for it; else it runs portable ones.
        contrib: graphs for it may have operators of com.microsoft; else standard operators only, of the opset of
            portable graphs.
        writes_in_place: it has TensorScatter, by which graphs write to a static KV cache.
        finite_slots: unused slots of a static KV cache must hold finite values: its attention multiplies them by 0.
        gelu_by_pairs: its float16 kernel of GELU's tanh approximation computes pairs, and leaves out the last element
            of an odd number.
        whole_blocks: it dequantizes weights in blocks when it compiles a graph, if all blocks are full.
        tail_in_float32: whatever a session computes in, it is float32 between an output and the last matrix product.
        flat: graphs for it have no functions, no Scan and no Loop, as with ``--inline``.
        sizes: what it does with sizes that a graph leaves open; empty: the same as with others.
        int64: what it does with int64 inputs; empty: the same as with others.
        options: ONNX Runtime's options of every session on it.
        choices: the options that users may set, by name.
        device: where its nodes keep their outputs, as ONNX Runtime calls it (`HOST`: the host's memory).
        built_in: every build of ONNX Runtime has it, and it always loads.
        types: names of the element types that it computes in, where no kernel table says so.
        widened: names of element types that it computes in float32, with casts before and after each node.
        preferred: by family of lowerings (`posexport.graph.lowering.plan`), their names in order of preference; a
            family that is not named keeps its default order.
        unprofitable: graph passes that apply and are left out for it -> why.
        accuracy_level: of MatMulNBits, written or fused by the session from DequantizeLinear and MatMul; 4: activations
            are rounded to int8, 0: they are not.
        integers_on_host: it has kernels for floating-point types; nodes with integer or bool outputs run on the host.
        takes_defaults: it honours the defaults of optional inputs; if false, sessions require every input.
        threads_option: the provider option for the number of threads, if it has a separate thread pool.
        bias_multiples: name of an element type -> the multiple that the numbers of queries and keys must be for fused
            attention with a bias.
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
    contrib: bool = True
    flat: bool = False
    sizes: str = ""
    int64: str = ""
    writes_in_place: bool = True
    finite_slots: bool = False
    gelu_by_pairs: bool = False
    whole_blocks: bool = False
    tail_in_float32: bool = False
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

    def session_options(self, options: Mapping[str, Any] | None) -> dict[str, str]:
        """ONNX Runtime's provider options, with the user's ``options``; PosexportError for an invalid one."""
        return {**self.options, **ort_options(self.label, self.choices, options)}

    def precision(self, options: Mapping[str, Any] | None) -> str | None:
        """The precision that a session computes float32 graphs in, by the user's ``options``; None: float32."""
        precision = (options or {}).get(COMPUTES) if COMPUTES in self.choices else None
        return None if precision in (None, FLOAT32.precision) else str(precision)

    def pool(self, threads: int) -> dict[str, str]:
        """Provider options for ``threads`` threads, if the provider has a separate pool; 0: the provider decides."""
        return {self.threads_option: str(threads)} if self.threads_option and threads else {}

    @property
    def install(self) -> str:
        """The command or step that installs it."""
        return f"pip install 'posexport[{self.extra}]'" if self.extra else f"install {self.package} in its place"

    @property
    def waits_to_branch(self) -> bool:
        """The host synchronizes with the device before an ``If`` with a condition computed on the device."""
        return self.device != HOST

    def computes(self, dtype: DType) -> bool:
        """Whether it computes graphs of that floating-point type in that type: it multiplies matrices of it."""
        return dtype.name in self.types or self.has_kernel("MatMul", "", _OPSET, dtype)

    def loads(self, dtype: DType) -> bool:
        """Whether graphs of that floating-point type run on it, in that type or in float32."""
        return dtype.name in self.widened or self.computes(dtype)

    def has_kernel(self, operator: str, domain: str, opset: int, dtype: DType) -> bool:
        """Whether it computes nodes of ``operator`` in ``dtype`` itself, by the kernel table.

        A provider that compiles graphs has no kernel table: it computes every standard operator in its ``types``.
        ``opset``: the version of ``domain`` that the graph imports.
        """
        from posexport.base.targets import kernels

        if self.types:
            return not domain and dtype.name in self.types
        return kernels.has_kernel(self.ort_name, operator, domain, opset, dtype)


#: the providers by name; a package adds one by an entry point of the group ``posexport.providers``
PROVIDERS: Registry[Provider] = Registry("providers", Provider)


def register(provider: Provider) -> Provider:
    """Add a provider to `PROVIDERS`; ValueError for a name that is in use."""
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
        # seen on an H200, where by the dry run it was cuDNN's
        finite_slots=True,
        # seen on an H200 with onnxruntime-gpu 1.31.1, and in fast_gelu_impl.cu
        gelu_by_pairs=True,
        preferred={
            "attention": ("group-query", "filled-slots", "kept-keys", "static", "multi-head", "attention", "formula")
        },
        unprofitable={
            "packed-projections": "not measured on CUDA",
            "routed-experts": "not measured on CUDA",
            "last-logits": "its number is read on the host, which waits for it in every call (seen in the dry run)",
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
        load_failure=no_device("a GPU with a driver for Vulkan, Metal or Direct3D 12"),
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
        contrib=False,
        flat=True,
        writes_in_place=False,
        whole_blocks=True,
        tail_in_float32=True,
        # left alone, it computes in bfloat16 on processors that have it: an error of 0.7% of the largest element
        options=OPENVINO_OPTIONS[COMPUTES].to_ort("fp32"),
        choices=OPENVINO_OPTIONS,
        types=frozenset({"float32"}),
        widened=frozenset({"float16"}),
        takes_defaults=False,
        threads_option="num_of_threads",
        load_failure=no_device(
            "an Intel processor (on another one pip install onnxruntime-openvino in place of onnxruntime)"
        ),
    )
)
#: the provider if the user names none
DEFAULT_PROVIDER = CPU.name


def targets() -> dict[str, Provider]:
    """The loaded providers that graphs can be converted for, by name."""
    return {name: provider for name, provider in PROVIDERS.items() if provider.is_target}


def provider_named(name: str) -> Provider:
    """The provider that users call ``name``; PosexportError lists the known ones."""
    provider = PROVIDERS.get(name)
    if provider is None:
        raise PosexportError(f"unknown provider {name!r}; known: {', '.join(PROVIDERS.names)}")
    return provider
