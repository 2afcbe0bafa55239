"""posexport.nn.Attention against the papers, and decoders that people write of it.

The oracle goes pair by pair in float64 NumPy and uses nothing of posexport but the layer's weights.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec, Limits, OutputSpec
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.alibi import Alibi
from posexport.encodings.compose import ByLayer
from posexport.encodings.encoding import ENCODINGS, HOOKS, Encoding
from posexport.encodings.relative_key import RelativeKey
from posexport.encodings.t5 import T5
from posexport.errors import PosexportError
from posexport.modules.own_decoder import OwnDecoder
from posexport.modules.user_module import by_name
from posexport.modules.with_cache import with_cache
from posexport.nn import Attention, InputEncoding, Positions, StaticKVCache
from posexport.run.load import load as load_bundle
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import with_kv_cache, with_limit
from posexport.sources.source import Source
from tests.tolerances import agree, allowed

#: 12 heads of 6 channels are not the 70 channels of the input
HIDDEN, HEADS, KV_HEADS, SIZE = 70, 12, 4, 6
SETTINGS = {
    "t5": {"buckets": 8, "max_distance": 13},
    "alibi": {},
    "rope": {},
    "shaw-kv": {"clip": 3},
    "relative-key": {"max_positions": 19},
    "nope": {},
}
T, S = 17, 11


# the papers


def t5_bucket(distance, bidirectional, buckets=8, most=13):
    """Raffel et al. 2020, section 2.1 and released code; ``distance`` is key minus query."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    if distance < buckets // 2:
        return first + distance
    wide = math.log(distance / (buckets // 2)) / math.log(most / (buckets // 2)) * (buckets - buckets // 2)
    return first + min(buckets - 1, buckets // 2 + int(wide))


def turned(x, position):
    """Su et al. 2021, equation 34; the pairs are channel i and channel i + d / 2."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


#: Press et al. 2022, section 3: of 8 heads, then every other of 16
SLOPES = [2.0**-h for h in range(1, 9)] + [2.0 ** (-0.5 - h) for h in range(4)]


def product_of(name, w, q, k, i, j):
    """Of the query at i and the key at j, with what an encoding does to either."""
    if name == "rope":
        return turned(q, i) @ turned(k, j)
    if name == "shaw-kv":
        return q @ (k + w["encoding.key_table"][np.clip(j - i, -3, 3) + 3])
    if name == "relative-key":
        return q @ (k + w["encoding.table"][i - j + 18])
    return q @ k


def bias_of(name, w, head, ahead, causal):
    """What an encoding adds to the score of a query so many tokens ahead of the key."""
    if name == "t5":
        return w["encoding.table"][t5_bucket(-ahead, not causal), head]
    return -SLOPES[head] * abs(ahead) if name == "alibi" else 0


def paper(name, layer, x_BTC, seen_BS=None, context_BSC=None):
    """Every row, head, query and key in turn. Positions are places: padding moves all tokens of a row alike."""
    w = {key: tensor.detach().double().numpy() for key, tensor in layer.state_dict().items()}
    context_BSC = x_BTC if context_BSC is None else context_BSC
    batch, queries, keys = len(x_BTC), x_BTC.shape[1], context_BSC.shape[1]

    def project(part, y):
        return y @ w[f"{part}.weight"].T + w[f"{part}.bias"]

    mixed = np.zeros((batch, queries, HEADS * SIZE))
    for b in range(batch):
        q_TC, k_SC, v_SC = project("query", x_BTC[b]), project("key", context_BSC[b]), project("value", context_BSC[b])
        allowed = [j for j in range(keys) if seen_BS is None or seen_BS[b, j]]
        for h in range(HEADS):
            of_head, group = slice(h * SIZE, (h + 1) * SIZE), h // (HEADS // KV_HEADS)
            of_group = slice(group * SIZE, (group + 1) * SIZE)
            for i in range(queries):
                js = [j for j in allowed if not layer.causal or j <= i]
                if not js:
                    continue
                scores, q = [], q_TC[i, of_head]
                for j in js:
                    product = product_of(name, w, q, k_SC[j, of_group], i, j)
                    scores.append(product / math.sqrt(SIZE) + bias_of(name, w, h, i - j, layer.causal))
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                for j, weight in zip(js, weights, strict=True):
                    value = v_SC[j, of_group]
                    if name == "shaw-kv":
                        value = value + w["encoding.value_table"][np.clip(j - i, -3, 3) + 3]
                    mixed[b, i, of_head] += weight * value
    return project("output", mixed)


def layer_of(name, *, causal=False, **options):
    torch.manual_seed(5)
    layer = Attention(
        HIDDEN, HEADS, name, settings=SETTINGS[name], causal=causal, kv_heads=KV_HEADS, head_size=SIZE, **options
    ).double()
    with torch.no_grad():
        for parameter in layer.encoding.parameters():
            parameter.normal_()
    return layer.eval()


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(batch, length, side):
    """Masks of rows that lose 0, 1, 2 ... tokens on one side."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        mask[row, slice(0, row) if side == "left" else slice(length - row, length)] = 0
    return mask


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_self_attention_is_the_paper_s(name, causal, side):
    layer, x = layer_of(name, causal=causal), drawn(2, T, HIDDEN)
    mask = None if side == "none" else padded(2, T, side)
    real = np.ones((2, T), bool) if mask is None else mask.numpy() != 0
    got = layer(x, mask)
    want = paper(name, layer, x.numpy(), real)
    agree(got.detach().numpy()[real], want[real], "attention", np.float64)


@pytest.mark.parametrize("name", SETTINGS)
def test_cross_attention_is_the_paper_s(name):
    layer, x, context = layer_of(name, context_hidden=50), drawn(2, T, HIDDEN), drawn(2, S, 50, seed=1)
    mask = padded(2, S, "right")
    want = paper(name, layer, x.numpy(), mask.numpy() != 0, context.numpy())
    agree(layer(x, mask.bool(), context=context).detach().numpy(), want, "attention", np.float64)
    # the queries behind a KV cache: their own numbers
    ids = torch.arange(9, T)[None]
    agree(layer(x[:, 9:], mask, context=context, position_ids=ids).detach().numpy(), want[:, 9:], "attention", float)


@pytest.mark.parametrize("capacity", [None, T + 4], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", SETTINGS)
def test_calls_with_a_cache_give_what_one_call_gives(name, capacity):
    layer, x, mask = layer_of(name, causal=True), drawn(2, T, HIDDEN), padded(2, T, "left")
    past, parts, end = layer.new_cache(2, capacity), [], 0
    if capacity:  # what unused slots hold is not read
        past = StaticKVCache(*(torch.full_like(tensor, torch.nan) for tensor in past))
    for new in (9, 1, 5, 1, 1):
        start, end = end, end + new
        y, past = layer(x[:, start:end], mask[:, :end], past=past)
        parts.append(y.detach())
    want = paper(name, layer, x.numpy(), mask.numpy() != 0)
    real = mask.numpy() != 0
    agree(torch.cat(parts, 1).numpy()[real], want[real], "attention", np.float64)
    assert isinstance(past, StaticKVCache) == bool(capacity)
    assert past[0].shape == (2, KV_HEADS, capacity or T, SIZE)


def test_position_ids_take_the_place_of_counting():
    layer, x = layer_of("rope", causal=True), drawn(2, 7, HIDDEN)
    ids = torch.tensor([[3], [8]]) + torch.arange(7)
    agree(layer(x, position_ids=ids).detach(), layer(x).detach(), "attention", np.float64)  # distances are the same
    stretched = layer(x, position_ids=2 * torch.arange(7)[None]).detach()
    assert (stretched - layer(x).detach()).abs().max() > 1e-3
    past = layer.new_cache(2)
    first, past = layer(x[:, :4], position_ids=ids[:, :4], past=past)
    second, _ = layer(x[:, 4:], position_ids=ids[:, 4:], past=past)
    agree(torch.cat([first, second], 1).detach(), layer(x).detach(), "attention", np.float64)


@pytest.mark.parametrize("name", SETTINGS)
def test_permuted_tokens_give_other_outputs_unless_there_are_no_positions(name):
    layer, x = layer_of(name), drawn(2, T, HIDDEN)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(2))
    plain, permuted = layer(x).detach()[:, order], layer(x[:, order]).detach()
    if name == "nope":
        agree(permuted, plain, "attention", np.float64)
    else:
        assert (permuted - plain).abs().max() > 1e-2


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_small_differences_and_reach_every_parameter(name):
    layer, x = layer_of(name, causal=True), drawn(2, 7, HIDDEN)
    mask = padded(2, 7, "left")

    def loss():
        return (layer(x, mask) * mask[..., None]).square().sum()

    loss().backward()
    for path, parameter in layer.named_parameters():
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter += step * direction
                values.append(float(loss()))
                parameter -= step * direction
        slope = (values[0] - values[1]) / 2e-5
        # the same number on every key of a query changes no probability, unless the query turns it by distance
        idle = path == "key.bias" and name != "rope"
        off = abs(float((parameter.grad * direction).sum()) - slope)
        assert off <= allowed("finite difference", np.float64) * max(abs(slope), 0.1), path
        assert idle or abs(slope) > 1e-4, path


def test_dropout_is_for_training():
    torch.manual_seed(0)
    layer, x = Attention(60, 5, "nope", dropout=0.5), torch.randn(2, 7, 60)
    plain = Attention(60, 5, "nope")
    plain.load_state_dict(layer.state_dict())
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), plain.train()(x))
    # every probability that is left is doubled: means agree
    layer.train()
    mean = torch.stack([layer(x) for _ in range(600)]).mean(0)
    assert (mean - plain(x)).abs().max() < 0.1 * plain(x).abs().max()


def test_layers_may_share_an_encoding():
    first = Attention(60, 5)
    second = Attention(60, 5, first.encoding)
    names = [name for name, _ in nn.ModuleList([first, second]).named_parameters()]
    assert [name for name in names if "encoding" in name] == ["0.encoding.table"]
    assert first.encoding.bidirectional
    assert not Attention(60, 5, causal=True).encoding.bidirectional
    assert Attention(60, 5, causal=True, settings={"bidirectional": True}).encoding.bidirectional
    assert (
        Attention(60, 5, "rope-yarn", settings={"factor": 8, "layout": "interleaved"}).encoding.layout == "interleaved"
    )


# the catalogue


def hooks(cls):
    return {hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook)}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_can_be_named(name):
    cls = ENCODINGS[name].cls
    positions, x = Positions.image(3, 4) if cls.axes == 2 else None, torch.randn(2, 12, 60)
    acts_on_input = "embed" in hooks(cls)
    if acts_on_input:
        layer = InputEncoding(60, name, heads=5)
        assert layer(x, position_ids=positions).shape == (2, 12, layer.width)
        with pytest.raises(PosexportError, match=r"posexport\.nn\.InputEncoding\(hidden, "):
            Attention(60, 5, name, causal=cls.causal)
    else:
        with pytest.raises(PosexportError, match=r"acts in attention.*posexport\.nn\.Attention\("):
            InputEncoding(60, name, heads=5)
    if not acts_on_input or len(hooks(cls)) > 1:
        encoding = layer.encoding if acts_on_input else name
        attention = Attention(60, 5, encoding, causal=cls.causal)
        y = attention(x, position_ids=positions)
        assert y.shape == (2, 12, 60)
        assert bool(y.isfinite().all())
        y.sum().backward()
        assert not [key for key, p in attention.named_parameters() if p.grad is None and (not acts_on_input)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Attention(60, 7), "hidden must be a multiple of heads, got hidden=60, heads=7"),
        (lambda: Attention(60, 5, kv_heads=3), "kv_heads must divide heads=5, got 3"),
        (lambda: Attention(0, 5), "hidden must be a whole number from 1 on, got 0"),
        (lambda: Attention(60, 5, head_size=2.5), "head_size must be a whole number from 1 on, got 2.5"),
        (lambda: Attention(60, 5, dropout=1), "dropout must be from 0 to below 1, got 1"),
        (lambda: Attention(60, 5, "ropes"), "unknown encoding 'ropes'.*did you mean rope"),
        (lambda: Attention(60, 5, 3), "encoding must be the name of an encoding"),
        (lambda: Attention(60, 5, settings={"bucket": 8}), "no setting 'bucket'.*did you mean buckets"),
        (lambda: Attention(60, 5, settings={"buckets": 8.5}), "buckets must be int, got 8.5"),
        (lambda: Attention(60, 5, settings={"buckets": "many"}), "buckets must be a whole number, got 'many'"),
        (lambda: Attention(60, 5, settings={"heads": 6}), "heads is that of the layer, 5, got 6"),
        (lambda: Attention(60, 5, "rope", settings={"layout": "odd"}), "layout must be one of half, interleaved"),
        (lambda: Attention(60, 5, "rope", settings={"rotary_dim": True}), "rotary_dim must be int or NoneType"),
        (lambda: Attention(60, 5, T5(heads=6)), "t5 was made for heads=6, the layer has 5"),
        (lambda: Attention(60, 5, T5(heads=5), settings={"buckets": 8}), "are for an encoding by name"),
        (lambda: Attention(60, 5, ByLayer([T5(heads=5)])), r"encoding\.in_layer\(index\)"),
        (lambda: Attention(60, 5, "cope"), "cope makes sense only where keys after the query are masked"),
        (lambda: Attention(60, 5, "wavlm-gated", head_size=7), "head_size must be hidden / heads"),
        (lambda: Attention(60, 5)(torch.ones(2, 7)), r"x must be \[batch, tokens, 60\], got \[2, 7\]"),
        (lambda: Attention(60, 5)(torch.ones(2, 7, 60), torch.ones(2, 7)), "integers or booleans.*float32"),
        (lambda: Attention(60, 5)(torch.ones(2, 7, 60), torch.ones(2, 8).int()), r"must be \[2, 7\], got \[2, 8\]"),
        (lambda: Attention(60, 5)(torch.ones(2, 7, 60), past=()), "past is for causal attention"),
        (
            lambda: Attention(60, 5, causal=True)(torch.ones(1, 3, 60), torch.tensor([[1, 0, 1]])),
            "padding between tokens",
        ),
        (lambda: Attention(60, 5, causal=True)(torch.ones(1, 3, 60), context=torch.ones(1, 3, 60)), "causal=False"),
        (lambda: Attention(60, 5, context_hidden=9)(torch.ones(1, 3, 60)), "made for a context of 9 channels"),
        (
            lambda: Attention(60, 5)(torch.ones(1, 3, 60), position_ids=torch.tensor([[0, 2, 4]])),
            "each of position_ids must be one more",
        ),
        (
            lambda: Attention(60, 5)(
                torch.ones(2, 2, 60), context=torch.ones(2, 3, 60), position_ids=torch.tensor([[0, 1], [4, 5]])
            ),
            "the same in all rows",
        ),
        (
            lambda: Attention(60, 5, RelativeKey(max_positions=5, head_size=12))(torch.ones(1, 6, 60)),
            "relative-key has 5 positions, got 6 tokens; make more, settings={'max_positions': 6}",
        ),
        (
            lambda: Attention(60, 5, causal=True)(torch.ones(1, 1, 60), past=Attention(60, 5).new_cache(2)),
            r"past must be \(key, value\), each \[1, 5, past tokens, 12\]",
        ),
        (
            lambda: Attention(60, 5, causal=True)(torch.ones(1, 1, 60), past=Attention(60, 5).new_cache(1, 4)),
            "a static KV cache needs attention_mask",
        ),
        (
            lambda: Attention(60, 5, causal=True)(
                torch.ones(1, 2, 60), torch.ones(1, 5).int(), past=Attention(60, 5).new_cache(1, 4)
            ),
            "attention_mask has 5 tokens, the static KV cache 4 slots",
        ),
        (
            lambda: Attention(60, 5, causal=True)(
                torch.ones(1, 2, 60), torch.ones(1, 5).int(), past=Attention(60, 5).new_cache(1)
            ),
            r"must be \[1, 0 \+ 2\], past and new tokens, got 5",
        ),
        (lambda: Attention(60, 5, "beit")(torch.ones(1, 12, 60)), "needs the rows and columns of an image"),
        (lambda: InputEncoding(60, "mpnet"), "the encoding mpnet needs heads"),
        (lambda: InputEncoding(60, "learned", settings={"max_positions": 4})(torch.ones(1, 5, 60)), "has 4 positions"),
        (lambda: InputEncoding(60, Alibi(heads=5)), "alibi acts in attention"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call, said):
    with pytest.raises(PosexportError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_positions_may_jump_at_padding_alone():
    layer, x = layer_of("alibi"), drawn(2, 5, HIDDEN)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 7, 7]])
    real = mask != 0
    agree(layer(x, mask, position_ids=ids).detach()[real], layer(x, mask).detach()[real], "attention", np.float64)
    with pytest.raises(PosexportError, match="each of position_ids must be one more"):
        layer(x, mask, position_ids=ids.flip(0))


def test_padding_on_the_left_moves_no_token_of_an_input_encoding():
    layer, x = InputEncoding(60, "learned"), torch.randn(2, 7, 60)
    mask = padded(2, 7, "left")
    y = layer(x, mask).detach()
    agree(y[1, 1:], layer(x[1:, 1:]).detach()[0], "same values", np.float32)
    agree(
        layer(x, position_ids=torch.arange(7)[None] + 4).detach()[0, 0], y[0, 4] - x[0, 4] + x[0, 0], "encoding", "f4"
    )


# decoders that people write


class Layer(nn.Module):
    def __init__(self, hidden, heads, encoding, **options):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads, encoding, causal=True, **options)
        self.feedforward = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 2 * hidden), nn.GELU())
        self.outer = nn.Linear(2 * hidden, hidden)

    def forward(self, x, mask):
        x = x + self.attention(self.norm(x), mask)
        return x + self.outer(self.feedforward(x))


class Writer(nn.Module):
    """Three layers; knows nothing of a cache."""

    def __init__(self, encoding="t5", vocab=61, hidden=36, heads=6, layers=3, **options):
        super().__init__()
        torch.manual_seed(1)
        self.token = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList([Layer(hidden, heads, encoding, **options)])
        if not self.layers[0].attention.encoding.per_layer:  # one table for all layers, as T5 has it
            encoding = self.layers[0].attention.encoding
        self.layers.extend(Layer(hidden, heads, encoding, **options) for _ in range(layers - 1))
        self.head = nn.Linear(hidden, vocab)
        for part in self.modules():
            if isinstance(part, Encoding):
                for parameter in part.parameters():
                    nn.init.normal_(parameter)

    def through(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)

    def forward(self, input_ids, attention_mask=None):
        return self.through(self.token(input_ids), attention_mask)


class Forgets(Writer):
    def forward(self, input_ids, attention_mask=None):
        del attention_mask
        return self.through(self.token(input_ids), None)


class Counts(Writer):
    def forward(self, input_ids, attention_mask=None):
        x = self.token(input_ids)
        return self.through(x + torch.arange(x.shape[1])[:, None].to(x.dtype) / 7, attention_mask)


class Both(Writer):
    def __init__(self):
        super().__init__()
        self.around = Attention(36, 6)

    def forward(self, input_ids, attention_mask=None):
        return self.through(self.around(self.token(input_ids), attention_mask), attention_mask)


class Numbered(Writer):
    def __init__(self):
        super().__init__("nope")
        self.table = nn.Embedding(23, 36)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        return self.through(self.token(input_ids) + self.table(position_ids), attention_mask)


class Twice(Writer):
    """Its layers are called twice each."""

    def forward(self, input_ids, attention_mask=None):
        x = self.token(input_ids)
        for layer in (*self.layers, *self.layers):
            x = layer(x, attention_mask)
        return self.head(x)


class Waves(Writer):
    def __init__(self):
        super().__init__("nope")
        self.positions = InputEncoding(36, "sinusoidal")

    def forward(self, input_ids, attention_mask=None):
        return self.through(self.positions(self.token(input_ids), attention_mask), attention_mask)


class Bigrams(nn.Module):
    """Without attention."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(61, 61)

    def forward(self, input_ids, attention_mask=None):
        del attention_mask
        return self.table(input_ids)


def source_of(module, names=("input_ids", "attention_mask"), vocab=61):
    """What loading would find out, without its search for the longest input."""
    roles = {"input_ids": ("tokens", 10), "attention_mask": ("mask", None), "position_ids": ("tokens", 10)}
    inputs = [
        InputSpec(name=name, dtype="int64", axes=[BATCH, SEQUENCE], role=roles[name][0], size=roles[name][1])
        for name in names
    ]
    outputs = [OutputSpec(name="output", axes=[BATCH, SEQUENCE, vocab])]
    return Source(
        name="mine",
        kind="python",
        module=by_name("mine", module.eval(), inputs, outputs),
        inputs=inputs,
        outputs=outputs,
        limits=Limits(),
        encoding=None,
        task="features",
        sha256="",
    )


def test_a_decoder_gets_a_cache_that_its_author_did_not_write():
    source = with_cache(source_of(Writer(kv_heads=2)), None)
    assert source.task == "text-generation"
    assert [spec.name for spec in source.inputs][:4] == [
        "input_ids",
        "attention_mask",
        "past_key_values.0.key",
        "past_key_values.0.value",
    ]
    assert source.inputs[2].axes == [BATCH, 2, "past_sequence_length", 6]
    assert source.inputs[0].size == 61
    assert [spec.name for spec in source.outputs][-2:] == ["present.2.key", "present.2.value"]
    assert source.limits.kv_cache
    assert (source.encoding.name, source.promises.causal, len(source.inputs)) == ("t5", True, 8)
    assert "a KV cache goes through its 3 causal attention layers" in source.remarks[-1]
    static = with_kv_cache(source, "static", "at-write")
    assert static.inputs[2].axes == [BATCH, 2, "max_sequence_length", 6]


@pytest.mark.all(but=("Waves", "Numbered"))
@pytest.mark.parametrize(("module", "names"), [(Waves, ()), (Numbered, ("position_ids",)), (Twice, ())])
def test_positions_of_the_input_and_layers_called_twice_have_a_cache_too(module, names):
    source = with_cache(source_of(module(), ("input_ids", "attention_mask", *names)), "text-generation")
    assert source.task == "text-generation"
    assert ("position_ids" in [spec.name for spec in source.inputs]) == (module is Numbered)
    assert source.limits.max_length == (23 if module is Numbered else None)
    assert source.encoding.name == {Waves: "sinusoidal", Numbered: "nope", Twice: "t5"}[module]
    assert sum(spec.role == "cache" for spec in source.inputs) == (12 if module is Twice else 6)


def test_given_positions_end_where_the_inputs_do():
    source = source_of(Numbered(), ("input_ids", "attention_mask", "position_ids"))
    shorter = with_limit(with_cache(source, None), "error", 9)
    for cache in ("dynamic", "static"):
        assert with_kv_cache(shorter, cache, "at-write").inputs[-1].size == 9


def test_the_task_decides_and_a_module_without_a_vocabulary_has_none():
    assert with_cache(source_of(Writer()), "features").task == "features"
    mixed = with_cache(source_of(Both()), None)
    assert mixed.task == "features"
    assert "without a KV cache: its attention sees later tokens" in mixed.remarks[-1]
    hidden = source_of(Writer(), vocab=36)
    assert with_cache(hidden, None).task == "features"


@pytest.mark.parametrize(
    ("module", "task", "said"),
    [
        (Both, "text-generation", "cannot be converted for text-generation: its attention sees later tokens"),
        (Writer, "fill-mask", "the task must be text-generation or features, got fill-mask"),
        (Bigrams, "text-generation", "it has no attention that posexport recognises"),
    ],
)
def test_what_keeps_a_module_from_having_a_cache_is_one_sentence(module, task, said):
    with pytest.raises(PosexportError, match=said) as raised:
        with_cache(source_of(module()), task)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("module", [Forgets, Counts])
def test_padding_and_positions_are_those_of_the_graph(module):
    assert with_cache(source_of(module()), None).task == "text-generation"


class ByLength(Writer):
    """Frequencies of the length of a call: the layers themselves keep a cache."""

    def __init__(self):
        super().__init__("rope-dynamic", layers=1)


def test_layers_of_the_length_keep_a_cache_themselves():
    source = with_cache(source_of(ByLength()), None)
    assert isinstance(source.module, OwnDecoder)
    assert source.limits.length_dependent


def test_another_mask_or_other_numbers_than_forward_s_are_refused():
    class Inverts(ByLength):
        def forward(self, input_ids, attention_mask=None):
            return self.through(self.token(input_ids), attention_mask * (input_ids != 0))

    class Shifts(ByLength):
        def forward(self, input_ids, attention_mask=None):
            x = self.token(input_ids)
            ids = torch.arange(x.shape[1])[None] + 1
            return self.head(self.layers[0].attention(x, attention_mask, position_ids=ids))

    source = with_cache(source_of(ByLength()), None)
    assert isinstance(source.module, OwnDecoder)
    for other, said in ((Inverts, "another attention_mask than forward did"), (Shifts, "other position_ids than")):
        source.module.user.module.__class__ = other
        with pytest.raises(PosexportError, match=f"got {said}"):
            source.module(torch.tensor([[0, 1, 3]]), torch.ones(1, 3).long())


FILE = """
import sys
sys.path.insert(0, {folder!r})
import torch
from tests.nn.test_nn_attention import Writer


def make():
    ids = torch.arange(6)[None]
    return Writer({encoding!r}, **{options!r}), {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}
"""


def written(tmp_path, encoding, **options):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(folder=str(Path(__file__).parents[1]), encoding=encoding, options=options))
    return f"{path}:make"


def greedy(module, prompt, steps):
    """The best token each time, by the whole sequence again."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            ids.append(int(module(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def generated(bundle, prompts, steps):
    return [one.tokens for one in load_bundle(bundle).generate(prompts, max_new_tokens=steps).completions]


def test_a_small_decoder_converts_with_proof_and_generates(tmp_path):
    options = {"settings": {"max_positions": 20}, "layers": 1, "kv_heads": 2}
    argument = written(tmp_path, "relative-key", **options)
    conversion = convert(argument, tmp_path / "out", ConvertOptions(cache="static", lengths=(1, 7), threads=1))
    assert conversion.good
    prompts = [[3, 1, 4, 1, 5], [2, 7]]
    module = Writer("relative-key", **options).eval()
    assert generated(tmp_path / "out", prompts, 9) == [greedy(module, prompt, 9) for prompt in prompts]


@pytest.mark.all
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("encoding", "options"), [("t5", {}), ("rope", {"kv_heads": 3}), ("shaw-kv", {})])
def test_decoders_are_proven_and_lowered_as_built_in_ones(encoding, options, cache, tmp_path):
    argument = written(tmp_path, encoding, **options)
    conversion = convert(argument, tmp_path / "out", ConvertOptions(cache=cache, threads=1))
    assert conversion.good
    assert conversion.manifest.proven
    sizes = ("hidden=36", "heads=6", "layers=3", *(f"{key}={value}" for key, value in options.items()))
    own = ConvertOptions(settings=sizes, cache=cache, verify=False)
    builtin = convert(f"decoder-{encoding}", tmp_path / "own", own)
    assert conversion.manifest.functions == builtin.manifest.functions
    assert conversion.manifest.lowerings == builtin.manifest.lowerings
    module = Writer(encoding, **options).eval()
    assert generated(tmp_path / "out", [[3, 1, 4], [7]], 12) == [greedy(module, p, 12) for p in ([3, 1, 4], [7])]


READER = """
import torch
from torch import nn
from posexport.nn import Attention


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.norm = nn.Embedding(61, 36), nn.LayerNorm(36)
        self.own = Attention(36, 6, "t5")
        self.cross = Attention(36, 6, "alibi", context_hidden=20, kv_heads=2)

    def forward(self, input_ids, attention_mask, memory, memory_mask):
        x = self.token(input_ids)
        x = x + self.own(self.norm(x), attention_mask)
        return x + self.cross(self.norm(x), memory_mask, context=memory)


def make():
    own, far = ["batch_size", "sequence_length"], ["batch_size", "encoder_sequence_length"]
    ids, memory = torch.arange(6)[None], torch.randn(1, 4, 20)
    mask, memory_mask = torch.ones_like(ids), torch.ones(1, 4, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "memory": memory, "memory_mask": memory_mask}
    return Reader(), inputs, dict(zip(inputs, (own, own, [*far, 20], far)))
"""


@pytest.mark.all
def test_an_encoder_with_cross_attention_is_proven(tmp_path):
    (tmp_path / "reader.py").write_text(READER)
    conversion = convert(f"{tmp_path / 'reader.py'}:make", tmp_path / "out", ConvertOptions(threads=1))
    assert conversion.good
    assert conversion.manifest.task == "features"


@pytest.mark.all
def test_a_file_s_task_is_asked_for_and_recorded(tmp_path):
    argument = written(tmp_path, "rope", layers=1)
    assert load_source(argument, LoadOptions()).task == "text-generation"
    assert load_source(argument, LoadOptions(task="features")).task == "features"
    with pytest.raises(PosexportError, match="the task must be text-generation or features, got fill-mask"):
        load_source(argument, LoadOptions(task="fill-mask"))
