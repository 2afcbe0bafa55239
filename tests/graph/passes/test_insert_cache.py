"""A KV cache by the pass: the logits are those of the author's forward.

The decoders are those of tests/modules and tests/nn; the truth is their forward in float64, of every row alone without
padding and without a cache.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from posexport.base.targets.target import Target
from posexport.conversion.export.context import of_source
from posexport.conversion.export.trace import as_traced, trace
from posexport.graph.lowering import functions
from posexport.graph.passes import pipeline
from posexport.graph.passes.cache.insert import insert_cache
from posexport.graph.passes.cache.known import Known
from posexport.graph.passes.graph_pass import NotInsertedError
from posexport.models.forward_decoder import Interface
from posexport.modules.decoder import UserDecoder
from posexport.modules.live_module import module_source
from posexport.sources.source import Source
from tests.modules import test_plain_decoders as decoders
from tests.modules import test_plain_styles as styles
from tests.modules import test_plain_variants as variants
from tests.modules import test_plain_windows as windows
from tests.nn import test_nn_attention as attention
from tests.tolerances import agree

V, TOKENS = decoders.V, 13
Make = Callable[[], nn.Module]


class Clipped(decoders.Llama):
    """Positions of angles from a number of tokens on are all the same."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def angles(self, T: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(T).clamp(max=self.most).type_as(self.freqs)  # type: ignore[arg-type]
        angles = torch.outer(at, self.freqs)  # type: ignore[arg-type]
        return angles.cos(), angles.sin()


SCORES = (styles.Capped, styles.Tempered, styles.Flattened, styles.NarrowValues, styles.NarrowKeysByHand)


class ByKeys(decoders.SelfAttention):
    """A bias of each key's position that is no function of the distance."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2], dtype=q.dtype)
        return styles.causal(q @ k.mT * 0.4 + (at * 1.3).sin()).softmax(-1) @ v


class Written(decoders.SelfAttention):
    """Keys are written into another tensor, in two parts."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.new_zeros(k.shape)
        keys[..., :2].copy_(k[..., 1:3])
        keys[..., 2:].copy_(k[..., 2:])
        return super().attend(q, keys, v)


class Chosen(decoders.Opt):
    """The two best channels of each token, of the tokens of all rows in one axis."""

    def __init__(self) -> None:
        super().__init__(Written)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx).flatten(0, 1)
        best = torch.zeros_like(x).scatter(1, x.topk(2, -1).indices, 1.0)
        return super().forward(idx) + self.lm_head((x * best).view(*idx.shape, -1))


POSITIONS = (styles.Gathered, styles.Picked, styles.InPlace, styles.NeoX, styles.MaskWhereNeeded, styles.Cropped)
DECODERS: dict[str, Make] = {
    **decoders.DECODERS,
    **{scores.__name__: partial(decoders.Opt, scores) for scores in SCORES},
    **{module.__name__: module for module in POSITIONS},
    **{module.__name__: module for module in variants.LAST},
    **{heads.__name__: partial(variants.GroupedLlama, heads) for heads in variants.GROUPED},
    "by-mask": partial(variants.ByMask, variants.WithMask),
    **{name: make for name, (make, _) in windows.WINDOWED.items()},
    **windows.ALIBI,
    "steeper": windows.Steeper,
    "window-of-last": partial(windows.WindowOfLast, 5),
    "clipped": partial(Clipped, 6),
    "by-keys": partial(decoders.Opt, ByKeys),
    "chosen": Chosen,
}


def opened(model: ir.Model, longest: int | None = None, *, static: bool = False) -> ort.InferenceSession:
    """ONNX Runtime with a graph of standard operators and those of posexport."""
    functions.attach(model, Target("portable", 24 if static else 18, steps=True, longest=longest))
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)


class Cached:
    """A graph with a cache in ONNX Runtime."""

    def __init__(self, model: ir.Model, longest: int | None = None, *, static: bool = False) -> None:
        self.session = opened(model, longest, static=static)
        self.past = [value for value in self.session.get_inputs() if value.name.startswith("past_key_values")]
        self.room = TOKENS + 3 if static else 0
        self.takes_positions = any(value.name == "position_ids" for value in self.session.get_inputs())

    def in_parts(self, ids: np.ndarray, mask: np.ndarray, parts: Sequence[int], since: int = 0) -> np.ndarray:
        """The logits of ``ids`` [B, T] in calls of so many tokens each; ``since``: the position of the first one."""
        past = [np.full((len(ids), of.shape[1], self.room, of.shape[3]), np.nan, np.float32) for of in self.past]
        logits, end = [], 0
        for count in parts:
            end += count
            feeds = {"input_ids": ids[:, end - count : end], "attention_mask": mask[:, :end]}
            if self.takes_positions:  # counted by the mask, or given
                given = np.arange(end)[None].repeat(len(ids), 0) + since
                feeds["position_ids"] = (given if since else np.full_like(given, -1))[:, end - count :]
            feeds |= {input_.name: value for input_, value in zip(self.past, past, strict=True)}
            of_part, *past = self.session.run(None, feeds)
            logits.append(of_part)
        return np.concatenate(logits, 1)


def by_the_pass(module: nn.Module, *, static: bool = False, at_read: bool = False) -> Cached:
    source = as_traced(decoder_of(module))
    opset = 24 if static else 18
    model, names = trace(source, opset), {spec.name for spec in source.inputs}
    pipeline.run(model, of_source(source, Target("portable", opset)), ["recognise"])
    mask, positions = (name if name in names else None for name in ("attention_mask", "position_ids"))
    insert_cache(model, "input_ids", mask, source.limits.max_length, positions, static=static, at_read=at_read)
    return Cached(model, source.limits.max_length, static=static)


def decoder_of(module: nn.Module) -> Source:
    """The source of a decoder whose cache is not known yet."""
    source = module_source(module.eval(), decoders.example(module))
    tokens = next(spec for spec in source.inputs if spec.role == "tokens")
    names = {"input_ids": tokens.name, "attention_mask": "attention_mask", "position_ids": "position_ids"}
    given = {spec.name for spec in source.inputs}
    limits = msgspec.structs.replace(source.limits, max_length=V) if "position_ids" in given else source.limits
    source = msgspec.structs.replace(source, limits=limits)
    interface = Interface(
        tokens=msgspec.structs.replace(tokens, name="input_ids"),
        names={name: of for name, of in names.items() if of in given},
        vocab=V,
        returns=source.outputs,
    )
    return msgspec.structs.replace(source, module=UserDecoder(source.module, interface, source.limits))  # type: ignore[arg-type]


def alone(module: nn.Module, row: Sequence[int]) -> np.ndarray:
    """The logits of each token of a row [T, V], by calls that end with it, in float64."""
    with torch.no_grad():
        ends = [decoders.alone(module, torch.tensor([row[:end]])) for end in range(1, len(row) + 1)]
    return np.stack([logits.reshape(-1, V)[-1].numpy() for logits in ends])


@cache
def rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, V, (3, TOKENS))


def in_float64(module: nn.Module) -> nn.Module:
    """A copy; attributes that are no parameters too, such as tables that a module keeps."""
    wide = copy.deepcopy(module).double().eval()
    for part in wide.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.double())
    return wide


_SHORT = ("llama-masked", "chosen", "WithoutAxis", "one-by-hand", "alibi-by-key")


def check(graph: Cached, module: nn.Module) -> None:
    """Every split, rows without padding and padded on the left."""
    ids = rows()
    torch.set_default_dtype(torch.float64)
    try:
        wide = in_float64(module)
        truth = [alone(wide, row) for row in ids.tolist()]
    finally:
        torch.set_default_dtype(torch.float32)
    whole = np.ones_like(ids)
    padded, kept = np.zeros_like(ids), np.zeros_like(ids)
    for row, length in enumerate((TOKENS, 8, 3)):
        padded[row, TOKENS - length :], kept[row, TOKENS - length :] = ids[row, :length], 1
    for parts in ([TOKENS], [1] * TOKENS, [3, 5, 1, 4], *([cut, TOKENS - cut] for cut in range(1, TOKENS))):
        agree(graph.in_parts(ids, whole, parts), np.stack(truth), "model in float32", np.float32)
    for parts in ([TOKENS], [TOKENS - 2, 1, 1], [4, 2, 7]):
        got = graph.in_parts(padded, kept, parts)
        for row, length in enumerate((TOKENS, 8, 3)):
            agree(got[row, TOKENS - length :], truth[row][:length], "model in float32", np.float32)


@pytest.mark.all(but=_SHORT)
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_the_authors_forward_at_every_split_and_padded_on_the_left(name: str) -> None:
    torch.manual_seed(0)
    module = DECODERS[name]().eval()
    check(by_the_pass(module), module)


@pytest.mark.all(but=("bmm",))
@pytest.mark.parametrize("name", DECODERS)
def test_a_static_cache_holds_the_same(name: str) -> None:
    torch.manual_seed(0)
    module = DECODERS[name]().eval()
    check(by_the_pass(module, static=True), module)


#: causal encodings of `posexport.nn.Attention`; those of the length have another way
ENCODINGS = ("t5", "alibi", "kerple", "shaw-kv", "shaw-k", "relative-key", "relative-key-query", "deberta",
             "transformer-xl", "fire", "cope", "sandwich", "local-window", "rope", "rope-yarn", "rope-ntk",
             "rope-llama3", "xpos", "nope", "tupe", "nezha", "wavlm-gated", "dynamic-bias", "music",
             "wav2vec2-bert")  # fmt: skip


def writer(encoding: str, **options: Any) -> nn.Module:
    return attention.Writer(encoding, vocab=V, layers=2, **options)  # type: ignore[no-untyped-call]


@pytest.mark.all(but=("transformer-xl",))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layers_of_posexport_have_a_cache(encoding: str) -> None:
    module = writer(encoding, kv_heads=2 if encoding.startswith("rope") else None).eval()
    check(by_the_pass(module), module)


@pytest.mark.all(but=("xpos-static",))
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("encoding", ["rope", "xpos"])
def test_keys_may_be_kept_without_their_rotation(encoding: str, static: bool) -> None:
    module = writer(encoding, kv_heads=2 if encoding == "rope" else None).eval()
    check(by_the_pass(module, static=static, at_read=True), module)


class Given(decoders.NanoGpt):
    """Positions are an argument; masks go by the order of the tokens."""

    def __init__(self, attention: Make) -> None:
        super().__init__(partial(decoders.Block, attention))
        self.wpe = nn.Embedding(V, decoders.C)

    def forward(self, idx: Tensor, position_ids: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(position_ids)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


@pytest.mark.parametrize(
    "attention", [pytest.param(decoders.SelfAttention, marks=pytest.mark.all), decoders.ByHand, ByKeys]
)
def test_positions_that_are_given_are_those_of_the_new_tokens(attention: Make) -> None:
    torch.manual_seed(0)
    module, ids = Given(attention).eval(), rows()
    graph, whole = by_the_pass(module), np.ones_like(ids)
    for since in (0, 5):
        positions = torch.arange(since, since + TOKENS).expand(ids.shape)
        with torch.no_grad():
            truth = in_float64(module)(torch.from_numpy(ids), positions).numpy()
        for parts in ([TOKENS], [4, 1, 8]):
            agree(graph.in_parts(ids, whole, parts, since), truth, "model in float32", np.float32)


class Scaled(decoders.Llama):
    """Angles with a scale of the position, which changes at 3,000 tokens."""

    def angles(self, T: int) -> tuple[Tensor, Tensor]:
        cos, sin = super().angles(T)
        at = torch.arange(T).type_as(cos)
        scale = 1 + torch.floor(at / 6000 + 0.5).log1p()[:, None]
        return cos * scale, sin * scale


@pytest.mark.all(but=("window",))
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (decoders.Llama, [300, 1, 1, 38]),
        (partial(windows.Window, 1100), [1102, 1, 1, 6]),
        (partial(Clipped, 5000), [5000, 1, 1, 6]),
        (Scaled, [3000, 1, 1, 6]),
    ],
    ids=["llama", "window", "clipped", "by-position"],
)
def test_more_tokens_than_anything_was_looked_at(make: Make, parts: list[int]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    ids = np.random.default_rng(1).integers(0, V, (1, sum(parts)))
    got = by_the_pass(module).in_parts(ids, np.ones_like(ids), parts)
    with torch.no_grad():
        expected = decoders.alone(in_float64(module), torch.from_numpy(ids))
    agree(got, expected, "model in float32", np.float32)


# -- what is refused, with the user's line -----------------------------------------------------------


class Convolved(decoders.Opt):
    """A causal convolution over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(decoders.C, V, 3)

    def forward(self, idx: Tensor) -> Tensor:
        x = nn.functional.pad(self.wte(idx).transpose(1, 2), (2, 0))
        return super().forward(idx) + self.conv(x).transpose(1, 2)  # type: ignore[no-any-return]


class OfLength(decoders.Opt):
    """Logits scaled by the logarithm of the length."""

    def forward(self, idx: Tensor) -> Tensor:
        return super().forward(idx) * torch.log(torch.ones(idx.shape[1]).sum() + 1)


class Averaged(decoders.Opt):
    """The mean of the tokens so far, as a running sum."""

    def forward(self, idx: Tensor) -> Tensor:
        return super().forward(idx) + self.lm_head(self.wte(idx).cumsum(1))


class ByPadding(decoders.SelfAttention):
    padding: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = styles.causal(q @ k.mT * 0.4).masked_fill(self.padding[:, None, None], -1e9)
        return scores.softmax(-1) @ v


class OfPadIds(decoders.Opt):
    """Tokens of id 3 are padding, wherever they are."""

    def __init__(self) -> None:
        super().__init__(ByPadding)

    def forward(self, idx: Tensor) -> Tensor:
        for block in self.h:
            block.attn.padding = idx == 3
        return super().forward(idx)


class Short(decoders.Llama):
    """The first 5,000 tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens[:, : min(tokens.shape[1], 5000)])


REFUSED: dict[str, tuple[Make, str]] = {
    "first": (variants.OfFirst, "Gather reads along its tokens"),
    "mixed": (variants.Mixed, "ReduceMean reads along its tokens"),
    "channels": (variants.OfChannels, "ReduceMean reads along its tokens"),
    "blocks": (partial(decoders.Opt, styles.InBlocks), "its attention sees some later tokens"),
    "everywhere": (partial(decoders.Opt, styles.Everywhere), "its attention sees later tokens"),
    "third": (partial(windows.Third, 0), "a row of its mask depends on how many tokens a call has"),
    "window": (partial(windows.CutWindow, 5000), "its mask has a number or a table beyond the 301 tokens"),
    "pad-ids": (OfPadIds, "Add reads pairs of tokens"),
    "short": (Short, "Slice reads along its tokens"),
    "convolution": (Convolved, "Conv reads along its tokens|Pad reads along its tokens"),
    "length": (OfLength, "a number that it reads depends on how many tokens a call has"),
    "sum": (Averaged, "CumSum reads along its tokens"),
}


@pytest.mark.all(but=("length", "first"))
@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_tokens_outside_attention_is_refused_with_the_line(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(NotInsertedError, match=rf"^({why}).* \(test_\w+\.py line \d+"):
        by_the_pass(make())


PAIRS = """
<ir_version: 10, opset_import: ["" : 18]>
main (float[1, sequence_length] x) => (float[HEADS, sequence_length] y)
<float[HEADS, sequence_length, sequence_length] pairs>
{
  column = Constant<value_ints = [2]>()
  wide = Unsqueeze(x, column)
  flat = Constant<value_ints = [1]>()
  rows = Unsqueeze(x, flat)
  pairs = Mul(wide, rows)
  y = ReduceSum<keepdims = 0>(pairs, column)
}
"""


@pytest.mark.parametrize(("heads", "far"), [(4, 4096), (32, 2048), (1 << 9, 512), (1 << 20, 512)])
def test_values_of_pairs_are_computed_for_fewer_tokens(heads: int, far: int) -> None:
    model = ir.from_proto(onnx.parser.parse_model(PAIRS.replace("HEADS", str(heads))))
    known = SimpleNamespace(model=model, far=4096)
    assert Known._few(known, [model.graph.outputs[0]]) == far  # type: ignore[arg-type]
    assert Known._few(known, []) == 4096  # type: ignore[arg-type]
