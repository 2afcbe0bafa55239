"""What decoders in the wild do: logits of the last token, repeated KV heads, summed masks; and what looks like it."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.recipe import CacheName
from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.export.context import of_source
from posexport.conversion.export.trace import as_traced, trace
from posexport.conversion.options import ConvertOptions
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import InsertedCache
from posexport.run.bundle.read import read
from posexport.run.load import load
from tests.modules.test_plain_decoders import (
    IDS,
    C,
    Gqa,
    H,
    Llama,
    NanoGpt,
    Opt,
    SelfAttention,
    V,
    alone,
    example,
    source_of,
)
from tests.modules.test_plain_windows import ALIBI, WINDOWED
from tests.small import in_short
from tests.tolerances import agree


class OfLast(NanoGpt):
    """nanoGPT's own end: without targets, of the last position alone."""

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device))
        for block in self.h:
            x = block(x)
        return self.end(self.ln_f(x))

    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x[:, [-1], :])
        return logits


class WithoutAxis(OfLast):
    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x)
        return logits[:, -1]


class ByLength(OfLast):
    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x[:, x.shape[1] - 1 :])
        return logits


class OfFirst(OfLast):
    """Of the first token, as a classifier has it."""

    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x[:, 0])
        return logits


class OfChannels(OfLast):
    """The last of another axis: a channel, repeated."""

    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x[:, :, [-1]].expand_as(x).mean(1))
        return logits


class Mixed(OfLast):
    """The last token knows of the mean of all."""

    def end(self, x: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(x[:, -1] + x.mean(1))
        return logits


class InBlocks(OfLast):
    """Tokens of a block of 4 see one another's first, as in local attention."""

    def end(self, x: Tensor) -> Tensor:
        blocks = F.pad(x, (0, 0, 0, -x.shape[1] % 4)).unflatten(1, (-1, 4))
        logits: Tensor = self.lm_head((blocks + blocks[:, :, :1]).flatten(1, 2)[:, : x.shape[1]])
        return logits


LAST = (OfLast, WithoutAxis, ByLength)


@pytest.mark.parametrize("make", in_short(LAST, lambda make: make is WithoutAxis))
def test_a_module_of_the_last_token_gives_logits_of_every_token(make: type[OfLast]) -> None:
    module = make()
    source = source_of(module)
    assert source.task == "text-generation"
    assert source.outputs[0].axes == ["batch_size", "sequence_length", V]
    assert any("returns the logits of the last token" in remark for remark in source.remarks)
    # which the proof compares with are those of shorter inputs
    every = source.module(IDS)[0].detach()
    for end in (1, 5, 11):
        agree(every[:, end - 1].numpy(), alone(module, IDS[:, :end]).flatten(1).numpy(), "attention", np.float32)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(OfFirst, "Gather reads along its tokens", marks=pytest.mark.all),
        pytest.param(OfChannels, "ReduceMean reads along its tokens", marks=pytest.mark.all),
        (InBlocks, r"test_plain_variants.py line \d+: `blocks = "),
        (Mixed, r"ReduceMean reads along its tokens .*`logits: Tensor = self.lm_head\(x\[:, -1\] \+ x.mean"),
    ],
)
def test_what_is_not_of_the_last_token_alone_has_no_cache(make: type[OfLast], said: str) -> None:
    source = source_of(make())
    assert source.task == "features"
    assert re.search(f"without a KV cache: .*{said}", source.remarks[-1])


class Repeating(Gqa):
    """KV heads repeated before attention, as Llama's repeat_kv does it."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (w(x).view(B, T, -1, C // H).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out: Tensor = self.wo(self.attend(q, self.repeated(k), self.repeated(v)).transpose(1, 2).reshape(B, T, C))
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def repeated(self, x: Tensor) -> Tensor:
        B, kv, T, D = x.shape
        return x[:, :, None].expand(B, kv, H // kv, T, D).reshape(B, H, T, D)


class Interleaved(Repeating):
    def repeated(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(H // self.KV, dim=1)


class InterleavedByHand(Interleaved):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.mT * 0.4).masked_fill(later, -torch.inf).softmax(-1) @ v


class Tiled(Repeating):
    """Heads of a group do not stand together: head h reads KV head h % 2."""

    def repeated(self, x: Tensor) -> Tensor:
        return x.repeat(1, H // self.KV, 1, 1)


class KeysAlone(Repeating):
    """Keys in groups of three, values in another order."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k, v.flip(1)[:, [0, 3, 1, 4, 2, 5]])


class GroupedLlama(Llama):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention() for _ in range(2))


class BeforeHeads(Repeating):
    """The first Llama's: tokens before heads."""

    def repeated(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        B, T, kv, D = y.shape
        return y[:, :, :, None, :].expand(B, T, kv, H // kv, D).reshape(B, T, H, D).transpose(1, 2)


GROUPED = {Repeating: 2, Interleaved: 2, InterleavedByHand: 2, BeforeHeads: 2, Tiled: 6, KeysAlone: 6}


@pytest.mark.parametrize("make", in_short(GROUPED, lambda make: make in (InterleavedByHand, Tiled)))
def test_the_cache_holds_kv_heads_once(make: type[Repeating]) -> None:
    module = GroupedLlama(make)
    source = source_of(module)
    assert [spec.axes[1] for spec in source.inputs if spec.role == "cache"] == [GROUPED[make]] * 4


@pytest.mark.all
@pytest.mark.parametrize(
    ("make", "task"),
    in_short(
        [(make, task) for make in GROUPED for task in ("features", "text-generation")],
        lambda make, task: (make, task) == (Tiled, "features"),
    ),
)
def test_the_graph_has_kv_heads_once(make: type[Repeating], task: str) -> None:
    module = GroupedLlama(make).eval()
    source = source_of(module, task)
    graph = trace(as_traced(source), 23)
    cache = InsertedCache() if task == "text-generation" else None
    context = replace(of_source(as_traced(source), Target()), cache=cache)
    said = pipeline.run(graph, context, pipeline.OF_TRACE)["grouped-heads"]
    specs = {spec for node in graph.graph if (spec := AttentionSpec.of(node))}
    assert {spec.grouped for spec in specs} == {GROUPED[make] < H}
    repeats = {node.op_type for node in graph.graph} & {"Expand", "Tile"}
    assert bool(repeats) is (GROUPED[make] == H)
    assert said.nodes == (2 if GROUPED[make] < H else 0)
    assert bool(said.rejected) is (make is KeysAlone)


class ByMask(Opt):
    """Positions of transformers' generate: padding has 1."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        x = self.wte(input_ids) + self.wpe(position_ids)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & attention_mask[:, None, None].bool()
        for block in self.h:
            block.attn.mask = causal
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class WithMask(SelfAttention):
    mask: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


CONVERTED: dict[str, Callable[[], nn.Module]] = {
    "of-last": OfLast,
    "without-axis": WithoutAxis,
    "repeat-kv": partial(GroupedLlama, Repeating),
    "interleaved-by-hand": partial(GroupedLlama, InterleavedByHand),
    "tiled": partial(GroupedLlama, Tiled),
    "by-mask": partial(ByMask, WithMask),
    **{name: make for name, (make, _) in WINDOWED.items()},
    **ALIBI,
}


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "target", "cache", "lengths"),
    in_short(
        [
            ("of-last", "cpu", "static", (1, 7)),
            *((name, target, "dynamic", None) for name in CONVERTED for target in ("cpu", "cuda", "portable")),
            *((name, "cpu", "static", None) for name in CONVERTED),
        ],
        lambda _name, _target, _cache, lengths: lengths is not None,
    ),
)
def test_they_convert_with_proof_and_generate(
    name: str, target: str, cache: CacheName, lengths: tuple[int, ...] | None, tmp_path: Path
) -> None:
    module = CONVERTED[name]()
    options = ConvertOptions(target=target, cache=cache, lengths=lengths, threads=1, example_inputs=example(module))
    done = convert(module, tmp_path / "out", options)
    assert done.good, done.to_text()
    assert read(tmp_path / "out").task == "text-generation"
    prompts = [[3, 1, 4, 1, 5], [2, 7]]
    answer = load(tmp_path / "out").generate(prompts, max_new_tokens=5)
    for prompt, each in zip(prompts, answer.completions, strict=True):
        ids = list(prompt)
        for _ in range(5):
            ids.append(int(alone(module, torch.tensor([ids])).reshape(-1, V)[-1].argmax()))
        assert each.tokens == ids[len(prompt) :]
