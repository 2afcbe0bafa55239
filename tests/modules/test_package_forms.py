"""Modules in the forms that installed packages have: bool masks, one length, shortcuts by values, names imported."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from posexport.modules.recognise import mode
from posexport.modules.value_branches import ways_that_fit
from posexport.sources.torch_fixes import arange
from tests.tolerances import agree

VOCAB, D, HEADS, PAD = 53, 40, 5, 1


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(D, HEADS, 60, batch_first=True)


def ids(length: int = 9) -> Tensor:
    return torch.randint(4, VOCAB, (2, length), generator=torch.Generator().manual_seed(3))


class Masked(nn.Module):
    """A padding mask as PyTorch's layers take it; ``keeps``: as transformers' do, 1 at tokens."""

    def __init__(self, *, keeps: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.keeps = nn.Embedding(VOCAB, D), layer(), keeps

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        padding: Tensor = ~mask if self.keeps else mask
        return self.layer(self.embed(x), src_key_padding_mask=padding.bool())  # type: ignore[no-any-return]


class Flagged(nn.Module):
    """A bool that marks tokens and masks none."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.kinds, self.layer = nn.Embedding(VOCAB, D), nn.Embedding(2, D), layer()

    def forward(self, x: Tensor, is_name: Tensor) -> Tensor:
        return self.layer(self.embed(x) + self.kinds(is_name.long()))  # type: ignore[no-any-return]


class CausalFlagged(Flagged):
    """The same where no token sees later ones, so that the last ones are ignored with any flag."""

    def forward(self, x: Tensor, is_name: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(self.embed(x) + self.kinds(is_name.long()), src_mask=causal)  # type: ignore[no-any-return]


class Attending(nn.Module):
    """One head of attention on values; a subclass says which keys it drops beside later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def attended(self, x: Tensor, kept: Tensor) -> Tensor:
        index = torch.arange(x.shape[1])
        q, k, v = self.qkv(x).chunk(3, -1)
        return scaled_dot_product_attention(q, k, v, attn_mask=(index[:, None] >= index) & kept[:, None])


class Counted(Attending):
    """As in TimesFM: as many keys are dropped from the front as its mask marks, 1 at padding."""

    def forward(self, x: Tensor, patch_mask: Tensor) -> Tensor:
        return self.attended(x, torch.arange(x.shape[1]) >= patch_mask.sum(-1, keepdim=True))


class Missing(Attending):
    """Tokens whose first value is the number for missing ones, which no drawn value is near, are dropped."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attended(x.clamp(-8, 8), x[..., 0] > -50)


class OneLength(nn.Module):
    """Positions that are added without a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions, self.layer = nn.Embedding(VOCAB, D), nn.Parameter(torch.randn(9, D)), layer()

    def forward(self, text: Tensor) -> Tensor:
        return self.layer(self.embed(text) + self.positions)[:, -1]  # type: ignore[no-any-return]


class CausalBySize(nn.Module):
    """The flag of a function that this file imported by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(VOCAB, D), nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.embed(x)).chunk(3, -1))
        context = scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        return context.transpose(1, 2).flatten(2)


class Shortcut(nn.Module):
    """Leaves the mask out where nothing is padded; ``differs``: the two ways compute something else."""

    def __init__(self, *, differs: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.differs = nn.Embedding(VOCAB, D), layer(), differs

    def forward(self, tokens: Tensor) -> Tensor:
        padding: Tensor | None = tokens.eq(PAD)
        x = self.embed(tokens)
        if not padding.any():  # type: ignore[union-attr]
            padding = None
            x = 2 * x if self.differs else x
        return self.layer(x, src_key_padding_mask=padding)  # type: ignore[no-any-return]


class Strided(nn.Module):
    """Frames at half the rate, as many as there are positions: 17 samples give as many as 18, and 19 none."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.positions = nn.Conv1d(8, D, 3, 2, 1), nn.Parameter(torch.randn(9, D))
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        frames = self.convolution(x).transpose(1, 2)
        assert frames.shape[1:] == self.positions.shape
        return self.layer(frames + self.positions)  # type: ignore[no-any-return]


def converted(
    tmp_path: Path, module: nn.Module, inputs: dict[str, Tensor], lengths: list[int] | None = None
) -> posexport.Session:
    torch.manual_seed(0)
    done = posexport.convert(module.eval(), tmp_path / "b", example_inputs=inputs, lengths=lengths, threads=1)
    assert done.good, done.to_text()
    return posexport.load(tmp_path / "b")


@pytest.mark.parametrize(("dtype", "keeps"), [(torch.bool, False), (torch.bool, True), (torch.int64, False)])
def test_the_value_of_padding_is_found(dtype: torch.dtype, keeps: bool) -> None:
    mask = torch.full((2, 9), keeps, dtype=dtype)
    source = module_source(Masked(keeps=keeps).eval(), {"x": ids(), "mask": mask})
    spec = source.inputs[1]
    assert (spec.role, spec.dtype, spec.padding) == ("mask", str(dtype).removeprefix("torch."), int(not keeps))
    assert any("marks padding" in remark for remark in source.remarks) is not keeps


def test_a_bool_mask_is_an_input_as_it_is(tmp_path: Path) -> None:
    module = Masked().eval()
    session = converted(tmp_path, module, {"x": ids(), "mask": torch.zeros(2, 9, dtype=torch.bool)})
    x, mask = ids(13), torch.zeros(2, 13, dtype=torch.bool)
    mask[0, 5:] = True
    (output,) = session.run({"x": x.numpy(), "mask": mask.numpy()}).values()
    agree(output[0, :5], module(x[:1, :5], mask[:1, :5])[0], "model in float32", np.float32)
    with pytest.raises(PosexportError, match="0 for a token and 1 for padding"):
        session.run({"x": x.numpy(), "mask": 2 * mask.int().numpy()})


@pytest.mark.parametrize("kind", [Missing, Counted])
def test_causality_does_not_hide_what_else_a_mask_drops(tmp_path: Path, kind: type[Attending]) -> None:
    module, x, mask = kind().eval(), torch.randn(2, 17, D), torch.zeros(2, 17, dtype=torch.bool)
    inputs = {"x": x, "patch_mask": mask} if kind is Counted else {"x": x}
    session = converted(tmp_path, module, inputs, [17])
    mask[0, :6], x[0, :6, 0] = True, -99
    (output,) = session.run({name: tensor.numpy() for name, tensor in inputs.items()}).values()
    agree(output[:, 6:], module(**inputs)[:, 6:], "model in float32", np.float32)


@pytest.mark.parametrize("kind", [Flagged, CausalFlagged])
def test_a_bool_that_masks_nothing_is_a_flag(kind: type[Flagged]) -> None:
    source = module_source(kind().eval(), {"x": ids(), "is_name": ids() > 20})
    assert source.inputs[1].role == "flags"
    assert any("is_name masks no tokens" in remark for remark in source.remarks)


def test_ids_of_one_length_are_a_fixed_axis(tmp_path: Path) -> None:
    module = OneLength()
    session = converted(tmp_path, module, {"text": ids()})
    assert session.manifest.inputs[0].axes == ["batch_size", 9]
    assert (session.manifest.limits.min_length, session.manifest.limits.max_length) == (9, 9)
    with pytest.raises(PosexportError, match="length 17 cannot be compared: the model takes 9 tokens, no others"):
        posexport.convert(module.eval(), tmp_path / "c", example_inputs={"text": ids()}, lengths=[9, 17], threads=1)
    assert not (tmp_path / "c").exists()


def test_an_axis_that_varies_within_a_stride_is_fixed() -> None:
    source = module_source(Strided().eval(), {"x": torch.randn(2, 8, 18)})
    assert source.inputs[0].axes == ["batch_size", 8, 18]


def test_a_function_that_was_imported_by_its_name_takes_a_symbolic_flag(tmp_path: Path) -> None:
    converted(tmp_path, CausalBySize(), {"x": ids()})


def test_a_shortcut_by_values_is_traced_the_padded_way(tmp_path: Path) -> None:
    module = Shortcut()
    session = converted(tmp_path, module, {"tokens": ids()})
    for tokens in (ids(13), torch.cat((ids(7), torch.full((2, 6), PAD)), 1)):
        (output,) = session.run({"tokens": tokens.numpy()}).values()
        kept = tokens != PAD
        agree(output[kept], module(tokens)[kept], "model in float32", np.float32)


def test_ways_that_compute_something_else_are_not_taken() -> None:
    torch.manual_seed(0)
    specs = module_source(Shortcut().eval(), {"tokens": ids()}).inputs
    assert list(ways_that_fit(Shortcut().eval(), specs, {}).values()) == [True]
    assert ways_that_fit(Shortcut(differs=True).eval(), specs, {}) == {}


class HalfRead(nn.Module):
    """A number of tokens that Python computes from a size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCAB, D), layer()

    def forward(self, x: Tensor) -> Tensor:
        half = self.embed(x[:, : int(x.shape[1] / 2) + 1]) * (4 / math.sqrt(x.shape[1]))
        return self.layer(half)  # type: ignore[no-any-return]


def test_a_number_of_a_size_stays_symbolic(tmp_path: Path) -> None:
    module = HalfRead()
    session = converted(tmp_path, module, {"x": ids(12)})
    (output,) = session.run({"x": ids(17).numpy()}).values()
    agree(output, module(ids(17)), "model in float32", np.float32)


class Scaled(Shortcut):
    """Gives a number that depends on no input, or on all rows (``loss``)."""

    def __init__(self, *, loss: bool = False) -> None:
        super().__init__()
        self.scale, self.loss = nn.Parameter(torch.tensor(1.7)), loss

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        x = self.layer(self.embed(tokens))
        return {"hidden": x, "scale": x.square().mean() if self.loss else self.scale.exp()}


def test_a_constant_number_is_an_output(tmp_path: Path) -> None:
    session = converted(tmp_path, Scaled(), {"tokens": ids()})
    agree(session.run({"tokens": ids(13).numpy()})["scale"], [np.exp(1.7)], "operator", np.float32)


def test_a_number_for_a_batch_is_an_output(tmp_path: Path) -> None:
    module = Scaled(loss=True)
    torch.manual_seed(0)
    done = posexport.convert(
        module.eval(), tmp_path / "b", example_inputs={"tokens": ids()}, lengths=[1, 9], force=True
    )
    assert done.good, done.to_text()
    assert "scale: one number for the whole batch, which changes with every row of it" in done.remarks
    got = posexport.load(tmp_path / "b").run({"tokens": ids(13).numpy()})["scale"]
    with torch.no_grad():
        agree(got, module(ids(13))["scale"][None], "model in float32", np.float32)


class LastLength(nn.Module):
    """A table that is made anew where the length is not the last call's, as ESM-2's is, from integers by an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCAB, D), layer()
        self.length, self.table = -1, None
        self.register_buffer("frequencies", torch.rand(D))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.length:
            self.length = x.shape[1]
            self.table = torch.einsum("i,j->ij", torch.arange(self.length), self.frequencies).cos()
        return self.layer(self.embed(x) + self.table)  # type: ignore[no-any-return]


def test_a_length_that_a_call_left_is_no_special_case(tmp_path: Path) -> None:
    module = LastLength()
    session = converted(tmp_path, module, {"x": ids(11)})
    (output,) = session.run({"x": ids(17).numpy()}).values()
    agree(output, module(ids(17)), "model in float32", np.float32)


class Cached(nn.Module):
    """A table of the last length under the name of an attribute of the class, and a weight of the class alone."""

    table: Tensor | None = None
    mix = torch.randn(D, D, generator=torch.Generator().manual_seed(1))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCAB, D), layer()

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] != x.shape[1]:
            self.table = torch.arange(x.shape[1]) / 7
        return self.layer(self.embed(x) @ self.mix + self.table[:, None])  # type: ignore[no-any-return]


def test_a_tensor_may_have_the_name_of_an_attribute_of_its_class(tmp_path: Path) -> None:
    module = Cached().eval()
    module(ids(9))
    session = converted(tmp_path, module, {"x": ids(9)})
    (output,) = session.run({"x": ids(17).numpy()}).values()
    agree(output, module(ids(17)), "model in float32", np.float32)
    assert Cached.table is None
    assert type(module) is Cached


class OfSize(nn.Embedding):
    """Positions of a shape, as the sinusoids of BART and Marian."""

    def forward(self, size: torch.Size) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(size[1]))


class OfIds(nn.Embedding):
    """Positions that are counted from ids, as BART's learned ones."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward((ids != PAD).cumsum(1))


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_size, self.of_ids = OfSize(64, D), OfIds(70, D)
        self.token, self.layer = nn.Parameter(torch.randn(VOCAB, D)), layer()

    def forward(self, x: Tensor) -> Tensor:
        positions = self.of_size(x.size()) + self.of_ids(x)
        return self.layer(positions + nn.functional.embedding(input=x, weight=self.token))  # type: ignore[no-any-return]


def test_an_embedding_may_take_something_else_than_ids(tmp_path: Path) -> None:
    module = Positioned()
    session = converted(tmp_path, module, {"x": ids()})
    assert session.manifest.inputs[0].size == VOCAB
    (output,) = session.run({"x": ids(17).numpy()}).values()
    agree(output, module(ids(17)), "model in float32", np.float32)


class FromFloat(nn.Module):
    """Positions from 0.0 on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCAB, D), layer()

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(0.0, x.shape[1])[:, None]
        return self.layer(self.embed(x) + torch.sin(at * 0.1))  # type: ignore[no-any-return]


def test_positions_may_count_from_a_float(tmp_path: Path) -> None:
    module = FromFloat()
    session = converted(tmp_path, module, {"x": ids()})
    (output,) = session.run({"x": ids(17).numpy()}).values()
    agree(output, module(ids(17)), "model in float32", np.float32)


def test_what_onnx_refuses_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "_FIXES", tuple(fix for fix in mode._FIXES if fix is not arange.elements))
    sentence = (
        r"onnx refuses its graph, InferenceError: .*test_package_forms.py line \d+: `return self.layer.*`\); write"
    )
    with pytest.raises(PosexportError, match=sentence):
        posexport.convert(FromFloat().eval(), tmp_path / "b", example_inputs={"x": ids()})
    assert not list(tmp_path.iterdir())


class Angles(nn.Module):
    """A rotation whose angles the first call keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = 0
        self.rates = nn.Parameter(10.0 ** -torch.arange(4.0))
        self.register_buffer("kept", torch.zeros(512, 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        if n <= 512 and n <= self.filled:
            angles = self.kept[:n]
        else:
            angles = (torch.arange(n).float()[:, None] * self.rates).repeat_interleave(2, -1)
            if n <= 512:
                self.kept[:n], self.filled = angles.detach(), n
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * angles.cos() + torch.stack((-b, a), -1).flatten(-2) * angles.sin()


class Axial(nn.Module):
    """Attention across a fixed axis, then across the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.one, self.two = Angles(), nn.Linear(8, 24), nn.Linear(8, 24)

    def attend(self, linear: nn.Module, y: Tensor) -> Tensor:
        q, k, v = linear(y).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(self.angles(q), self.angles(k), v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 3, 2, 1).flatten(0, 1)
        y = (y + self.attend(self.one, y)).unflatten(0, (len(x), -1)).transpose(1, 2).flatten(0, 1)
        return y + self.attend(self.two, y)


@pytest.mark.all  # traced twice, by both strategies of the exporter
def test_axial_attention_with_kept_angles(tmp_path: Path) -> None:
    module = Axial().eval()
    example, axes = {"x": torch.randn(2, 8, 6, 9)}, {"x": ["batch_size", 8, 6, "sequence_length"]}
    assert posexport.convert(module, tmp_path / "b", example_inputs=example, axes=axes, lengths=(1, 17, 40)).good
