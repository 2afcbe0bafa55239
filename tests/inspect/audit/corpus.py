"""Public cases of wrong ONNX files, reproduced small, for docs/results/audit-cases.md and test_corpus.py.

Sources are threads in the trackers of the projects that they name (2024 to 2026).
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One public case.

    Attributes:
        number: its place in the table.
        source: the file or exporter, with the thread.
        saw: what users saw.
        cause: why.
        made: how the file here is made; of a case without a file, why it cannot be.
        code: the rule that finds it; empty: no file.
        maker: module and function of `tests.inspect.audit` that write the file with the fault and without.
        run: the graph has to be called.
        ort: the version of ONNX Runtime, for rules of its kernels; empty: the installed one.
    """

    number: int
    source: str
    saw: str
    cause: str
    made: str
    code: str = ""
    maker: str = ""
    run: bool = False
    ort: str = ""

    def file(self, folder: Path, *, fault: bool) -> Path:
        """Write the file, and what is beside it, into an empty folder."""
        module, name = self.maker.split(".")
        make: Any = getattr(import_module(f"tests.inspect.audit.{module}"), name)
        path: Path = make(folder, fault=fault)
        return path


_TRACED, _DYNAMO = "torch.onnx.export(dynamo=False)", "torch.onnx.export(dynamo=True)"
_HALF, _INT8 = "convert_float_to_float16 of ONNX Runtime", "quantize_dynamic of ONNX Runtime"
_PATTERN = "written after the pattern"
CASES = [
    Case(
        number=1,
        source="onnx-community/embeddinggemma-300m-ONNX (transformers.js 1728)",
        saw="q4 and q8 give other embeddings on WebGPU than on the CPU",
        cause="the provider's product of quantized weights",
        made="not here: the fault is the device's, and no WebGPU is at hand",
    ),
    Case(
        number=2,
        source="onnx-community/OpenMed-PII, fp16 (transformers.js 1749)",
        saw="the file does not open: Type Error",
        cause="operators in float16 that they do not have",
        made=f"{_TRACED}, then {_HALF} with disable_shape_infer",
        code="PX310",
        maker="exported.range_in_half",
    ),
    Case(
        number=3,
        source="onnx-community/gemma-3-270m-it, fp16 (onnxruntime PR 29599)",
        saw="NaN for some texts",
        cause="the norm is written out, and its squares overflow in float16",
        made=f"{_TRACED}, then {_HALF}",
        code="PX302",
        maker="exported.norm_with_weight",
    ),
    Case(
        number=4,
        source="onnx-community/nanochat-d32, fp16 (onnxruntime 26367)",
        saw="NaN in every output",
        cause="as 3, a norm without a weight",
        made=f"{_DYNAMO}, then {_HALF}",
        code="PX302",
        maker="exported.norm_without_weight",
    ),
    Case(
        number=5,
        source="Xenova/nllb-200 and Whisper, q8 (transformers.js 1286, 1317)",
        saw="repeated tokens on WebGPU, right text in WebAssembly",
        cause="the provider's way from int8 to float",
        made="not here: the fault is the device's, and no WebGPU is at hand",
    ),
    Case(
        number=6,
        source="Xenova/sam-vit-base, fp16 (onnxruntime 18311, 24204)",
        saw="other masks on WebGPU, and on CUDA than on the CPU",
        cause="float16 products that the CPU computes in float32; the rest is the device's",
        made=f"{_TRACED}, then {_HALF}; the device's part is not here",
        code="PX404",
        maker="exported.attention_in_half",
    ),
    Case(
        number=7,
        source="LateOn ColBERT on CoreML (onnxruntime 32569)",
        saw="other scores with MLProgram and static shapes",
        cause="the provider's partition",
        made="not here: the fault is the device's, and no CoreML is at hand",
    ),
    Case(
        number=8,
        source="microsoft/Phi-3-mini-4k-instruct-onnx (onnxruntime-genai 552)",
        saw="nonsense past half its context",
        cause="the window of 2,047 tokens is applied nowhere",
        made=f"{_PATTERN}, beside config.json",
        code="PX506",
        maker="patterns.window_of_the_config",
    ),
    Case(
        number=9,
        source="Phi-3.5 (onnxruntime-genai 954), phi3 by optimum-onnx",
        saw="nonsense beyond the original length",
        cause="one of two sets of longrope's frequencies, chosen when the model was traced",
        made=f"{_TRACED}, beside config.json",
        code="PX504",
        maker="exported.longrope",
    ),
    Case(
        number=10,
        source="Qwen3-VL by recipes of Olive (568, 601)",
        saw="plausible answers about images, wrong in small text and places",
        cause="features of inner layers (deepstack) do not reach the decoder",
        made=f"{_PATTERN}, two files",
        code="PX510",
        maker="patterns.features_of_inner_layers",
    ),
    Case(
        number=11,
        source="Qwen3-VL-2B (llm-export 63, 79), Qwen2.5-VL (Native-LLM 31)",
        saw="text is right, locations in images are wrong",
        cause="position ids have one row instead of time, height and width",
        made=f"{_PATTERN}, beside config.json",
        code="PX505",
        maker="patterns.one_row_of_positions",
    ),
    Case(
        number=12,
        source="Gemma 4 through a builder for Gemma 3 (onnxruntime-genai 2062)",
        saw="the file does not open",
        cause="layers of two head sizes, and caches of one",
        made=_PATTERN,
        code="PX105",
        maker="patterns.head_size_of_other_layers",
    ),
    Case(
        number=13,
        source="RF-DETR (rf-detr 949, onnxslim 192)",
        saw="only the exported batch size runs",
        cause="the batch is a Python int in Tile",
        made=_TRACED,
        code="PX102",
        maker="exported.queries_of_the_example",
    ),
    Case(
        number=14,
        source="livekit's wake word, weaver-core, lightly-train",
        saw="rows of a batch become one, or a batch of 2 fails",
        cause="traced with a batch of 1, which a Reshape keeps",
        made=_TRACED,
        code="PX102",
        maker="exported.rows_in_one",
    ),
    Case(
        number=15,
        source="coqui VITS (315), RVC's HuBERT (1830)",
        saw="every output has the length of the export, with a tone at its end",
        cause="the number of frames is a Python int",
        made=_TRACED,
        code="PX104",
        maker="exported.path_of_the_example",
    ),
    Case(
        number=16,
        source="Chatterbox (vernacula PR 49)",
        saw="every sentence has the same noise, and none is longer than it",
        cause="noise is an attribute of the module, and became a constant",
        made=_TRACED,
        code="PX307",
        maker="exported.noise_of_the_example",
    ),
    Case(
        number=17,
        source="espnet VITS (espnet_onnx 50), infinity 330, bart-large-mnli of winml",
        saw="Gather: index 712 is out of range",
        cause="nothing refuses positions beyond the table",
        made=_DYNAMO,
        code="PX201",
        maker="exported.learned_positions",
    ),
    Case(
        number=18,
        source="MiniLM in early fastembed (22), BGE by mlx-embeddings (63), Arctic (taosmd 160)",
        saw="other embeddings, recall 0.68 instead of 0.83",
        cause="another pooling than modules.json has",
        made=f"{_TRACED}, beside modules.json",
        code="PX507",
        maker="exported.pooling_of_another_model",
    ),
    Case(
        number=19,
        source="Qwen3.5 hybrids (rknn3 3, torch-to-nnef 330)",
        saw="the first call is right, later ones forget",
        cause="the recurrent state starts from zeros in every call",
        made=_DYNAMO,
        code="PX306",
        maker="exported.state_from_zeros",
    ),
    Case(
        number=20,
        source="BERT by mobius-onnx",
        saw="outputs depend on padding",
        cause="the mask of ones and zeros is added to the scores",
        made=_PATTERN,
        code="PX304",
        maker="patterns.integer_mask",
    ),
    Case(
        number=21,
        source="Attention at opset 25 on the CPU of ONNX Runtime 1.32",
        saw="twice the time and memory",
        cause="kernels end at opset 24, and the operator is taken apart",
        made=_PATTERN,
        code="PX402",
        maker="patterns.attention_of_opset_25",
        ort="1.32.0",
    ),
    Case(
        number=22,
        source="int8 on AVX2 and AVX-512 without VNNI (onnxruntime 5849, 6004, 14642)",
        saw="other outputs on another processor",
        cause="products of uint8 and int8 saturate in 16 bits",
        made=_INT8,
        code="PX403",
        maker="exported.attention_in_int8",
    ),
    Case(
        number=23,
        source="a float16 file chosen for the CPU (semantic-router 3225)",
        saw="slower than the float32 file",
        cause="the CPU has no float16 products",
        made=f"{_TRACED}, then {_HALF}",
        code="PX404",
        maker="exported.attention_in_half",
    ),
    Case(
        number=24,
        source="eliminate_shape_op of onnxoptimizer (optimizer 279)",
        saw="Reshape fails at other lengths than the example's",
        cause="the shape of a dynamic axis was folded",
        made=_PATTERN,
        code="PX101",
        maker="patterns.folded_shape",
    ),
]
