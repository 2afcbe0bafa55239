"""A large model of images and text: a few layers of its graphs tell all of them, and every mistake is found."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import posexport
from posexport.conversion.export.build import build
from posexport.conversion.export.by_layers import trace as by_layers
from posexport.models.embeddings_input import DECODER_FILE, EMBED_FILE
from posexport.proof.choose import ProofOptions
from posexport.proof.grid.grid import grid
from posexport.proof.quantized.records import StoredError
from posexport.proof.reduced import reduction as reductions_of
from posexport.proof.reduced.calls import few
from posexport.proof.reduced.prove import _compare_files
from posexport.proof.reduced.reduction import Reduction, parameters_of, reduction_of
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.conversion.export.test_by_layers import weight_of_the_next
from tests.full_model_mutants import Arrays, put, rewire, stored
from tests.small import recipe

transformers: Any = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

VISION_FILE = "vision_encoder.onnx"
#: the token of an image is beyond the words of a reduced model
VOCAB, IMAGE = 2100, 2090
WORDS = {"vocab_size": VOCAB, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 7}
WORDS |= {"num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 96}
IMAGES = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 7, "num_attention_heads": 4}
IMAGES |= {"image_size": 12, "patch_size": 4}
#: layers of Qwen2.5-VL's tower with attention to a whole image
FULL = [3, 7]


def qwen() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    vision = {"depth": 8, "hidden_size": 32, "out_hidden_size": 40, "intermediate_size": 24, "num_heads": 4}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16}
    config = transformers.Qwen2_5_VLConfig(
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2,
        vision_end_token_id=IMAGE + 3,
        text_config={**WORDS, "rope_parameters": rope},
        vision_config={**vision, "fullatt_block_indexes": FULL},
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def idefics() -> Any:
    words = {**WORDS, "model_type": "llama"}
    config = transformers.Idefics3Config(
        image_token_id=IMAGE, pad_token_id=0, scale_factor=3, text_config=words, vision_config=IMAGES
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def llava(layer: int = -2) -> Any:
    words, images = {**WORDS, "model_type": "llama"}, {**IMAGES, "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(
        image_token_index=IMAGE, vision_feature_layer=layer, text_config=words, vision_config=images
    )
    return transformers.LlavaForConditionalGeneration(config)


def deepstack() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    vision = {"depth": 12, "hidden_size": 32, "out_hidden_size": 40, "intermediate_size": 24, "num_heads": 4}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 25}
    config = transformers.Qwen3VLConfig(
        image_token_id=IMAGE,
        text_config={**WORDS, "head_dim": 8, "rope_parameters": rope},
        vision_config={**vision, "deepstack_visual_indexes": [2, 5, 8]},
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def saved(model: Any, folder: Path) -> str:
    """A checkpoint with weights of the scale of trained ones."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(0.15 * noise if parameter.dim() > 1 else 0.1 * noise + ("norm" in name or "ln_" in name))
    model.save_pretrained(folder)
    return str(folder)


def reduced(model: Any, folder: Path) -> Reduction:
    found = reduction_of(load_source(saved(model, folder), LoadOptions()))
    assert isinstance(found, Reduction), found
    return found


def kept(reduction: Reduction) -> list[list[int]]:
    return [[*stack.kept] for stack in reduction.stacks.values()]


def test_the_first_and_last_layers_of_each_kind_are_left_in_both_towers(tmp_path: Path) -> None:
    """With attention to a window and to a whole image; the full model is as it was."""
    found = reduced(qwen(), tmp_path)
    assert kept(found) == [[0, 1, 3, 4, 7], [0, 6]]
    assert (found.kept, found.layers) == (7, 15)
    visual, left = (each.module.get_submodule("vision.module.tower.visual") for each in (found.full, found.source))
    assert (visual.fullatt_block_indexes, left.fullatt_block_indexes) == (FULL, [2, 4])
    assert left.blocks[2].attn.qkv.weight is visual.blocks[3].attn.qkv.weight
    assert found.words is not None
    assert next(spec.size for spec in found.source.inputs if spec.role == "tokens") == found.words.reduced
    assert sum(spec.name.startswith("past_key_values") for spec in found.source.inputs) == 2 * 2
    # calls of the full model have the largest images, of several windows
    points = few(grid(found.full.limits, found.full.inputs), weights=1000)
    assert {dict(point.sizes)["num_patches"] for point in points if not point.must_be_rejected} == {30 * 4}
    # what tells layers apart by their numbers, in the tower and in the decoder
    assert kept(reduced(deepstack(), tmp_path / "deepstack")) == [[0, 2, 3, 5, 6, 8, 9, 11], [0, 1, 2, 3, 6]]


@pytest.mark.parametrize(("layer", "after", "left"), [(-2, 5, [0, 1, 5, 6]), (-1, 6, [0, 6]), (3, 2, [0, 2, 3, 6])])
def test_features_are_those_after_the_same_layer(layer: int, after: int, left: list[int], tmp_path: Path) -> None:
    found = reduced(llava(layer), tmp_path)
    assert kept(found)[0] == left
    tower = found.source.module.get_submodule("vision.module.tower")
    read = found.full.module.get_submodule("vision.module.tower.tower.encoder.layers")[after]
    layers = tower.tower.encoder.layers
    (number,) = (at for at, each in enumerate(layers) if each.mlp.fc1.weight is read.mlp.fc1.weight)
    states: list[torch.Tensor] = []
    layers[number].register_forward_hook(lambda _, __, output: states.append(output))
    features = tower(torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(features, tower.projector(states[0][:, 1:]))


@dataclass(frozen=True)
class Graphs:
    """The graphs of a model and of its reduced model."""

    reduction: Reduction
    folder: Path
    precision: str

    def compare(self, folder: Path | None = None) -> None:
        quantizer = "rtn" if self.precision == "int4" else None
        options = ProofOptions(precision=self.precision, quantizer=quantizer)  # type: ignore[arg-type]
        _compare_files(self.reduction, folder or self.folder / "full", self.folder / "reduced", options)


@dataclass(frozen=True)
class Graph:
    """One graph in memory, the weights by the names that it has for them, and the path of its layers."""

    model: onnx.ModelProto
    arrays: Arrays
    stack: str

    def layer(self, number: int) -> dict[str, TensorProto]:
        return stored(self.model, self.arrays, self.stack, number)

    def producer(self, name: str) -> onnx.NodeProto:
        return next(node for node in self.model.graph.node if name in node.output)


def exchanged(graph: Graph) -> bool:
    one, other = graph.layer(1), graph.layer(2)
    changed = False
    for role, tensor in one.items():
        if role in other:  # int8 smooths some layers
            old = tensor.raw_data
            changed |= put(tensor, other[role].raw_data)
            put(other[role], old)
    return changed


def twice(graph: Graph) -> bool:
    one, other = graph.layer(4), graph.layer(5)
    return sum(put(other[role], tensor.raw_data) for role, tensor in one.items() if role in other) > 0


def flipped(tensor: TensorProto, at: int = 0) -> bool:
    raw = bytearray(tensor.raw_data)
    raw[at] ^= 1
    return put(tensor, bytes(raw))


def one_bit(graph: Graph) -> bool:
    """Of the largest weight of layer 5."""
    return flipped(max(graph.layer(5).values(), key=lambda tensor: (len(tensor.raw_data), tensor.name)))


def one_bit_of_a_norm(graph: Graph) -> bool:
    roles = {role: tensor for role, tensor in graph.layer(5).items() if "norm" in role}
    return flipped(roles[min(roles)])


def last_word(graph: Graph) -> bool:
    """A row of the embeddings, or of the head, that the reduced model lacks."""
    table = max(graph.model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    assert VOCAB in table.dims
    return flipped(table, -len(table.raw_data) // VOCAB if table.dims[0] == VOCAB else -4)


def projector(graph: Graph) -> bool:
    """The last matrix of the graph: what maps the tower's states to the decoder's size."""
    names = {tensor.name: tensor for tensor in graph.model.graph.initializer if len(tensor.raw_data) > 1000}
    last = next(name for node in reversed(graph.model.graph.node) for name in node.input if name in names)
    assert ".layers." not in last
    return flipped(names[last])


def another_base(graph: Graph) -> bool:
    """One layer's queries are rotated by frequencies of another base."""
    nodes = graph.model.graph.node
    rotation = [node for node in nodes if node.op_type == "HalfRotation"][10]
    (rates,) = (tensor for tensor in graph.model.graph.initializer if tensor.name.endswith("rotary_emb.inv_freq"))
    other = numpy_helper.from_array(numpy_helper.to_array(rates) ** np.float32(0.8), "other_rates")
    graph.model.graph.initializer.append(other)
    names = {rates.name: other.name}
    place = 0
    for node in list(nodes):  # what follows from the frequencies is computed a second time
        place += 1
        if set(node.input) & names.keys() and node.op_type != "HalfRotation":
            again = helper.make_node(node.op_type, [], [f"other_{name}" for name in node.output], domain=node.domain)
            again.attribute.extend(node.attribute)
            again.input.extend(names.get(name, name) for name in node.input)
            names |= dict(zip(node.output, again.output, strict=True))
            nodes.insert(place, again)
            place += 1
    changed = [names.get(name, name) for name in rotation.input]
    is_other = changed != list(rotation.input)
    rotation.input[:] = changed
    return is_other


def another_mask(graph: Graph) -> bool:
    """A layer with attention to windows attends to the whole image."""
    attentions = [node for node in graph.model.graph.node if "Attention" in node.op_type]
    window, full = (attentions[layer].input[3] for layer in (5, FULL[0]))
    attentions[5].input[3] = full
    return window != full


def skipped(graph: Graph) -> bool:
    """What reads the states after layer 4 reads those after layer 3."""
    constants = {tensor.name for tensor in graph.model.graph.initializer}
    sums, stream = [], set[str]()
    for node in graph.model.graph.node:
        if node.op_type == "Add" and not set(node.input) & constants and (not sums or set(node.input) & stream):
            sums.append(node.output[0])
            stream = {node.output[0]}
    return rewire(graph.model, sums[-3], sums[-5], but=sums[-3])


IN_LAYERS: tuple[Callable[[Graph], bool], ...] = (exchanged, twice, one_bit, one_bit_of_a_norm)
MUTANTS: dict[str, tuple[Callable[[Graph], bool], ...]] = {
    VISION_FILE: (*IN_LAYERS, projector),
    EMBED_FILE: (last_word,),
    DECODER_FILE: (*IN_LAYERS, last_word, another_base),
}
MAKERS = {"qwen2_5_vl": qwen, "idefics3": idefics, "llava": llava}


@pytest.fixture(scope="module")
def reductions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reduction]:
    made: dict[str, Reduction] = {}

    def of(name: str) -> Reduction:
        if name not in made:
            made[name] = reduced(MAKERS[name](), tmp_path_factory.mktemp(name))
        return made[name]

    return of


@pytest.mark.all
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("name", ["qwen2_5_vl", "idefics3"])
def test_the_right_graphs_are_accepted_and_each_mistake_is_found(
    name: str, precision: str, reductions: Callable[[str], Reduction], tmp_path: Path
) -> None:
    reduction = reductions(name)
    options = recipe(task="image-text-to-text", opset=23, target="cpu", precision=precision)
    for source, folder in ((reduction.full, tmp_path / "full"), (reduction.source, tmp_path / "reduced")):
        folder.mkdir()
        for file, graph in source.graphs.items():
            build(graph, folder / file, options)
    graphs = Graphs(reduction, tmp_path, precision)
    graphs.compare()
    missed = []
    for file, mutants in MUTANTS.items():
        source = reduction.full.graphs[file]
        arrays = {key: parameter.detach().numpy() for key, parameter in parameters_of(source.module).items()}
        lists = {id(reduction.full.module.get_submodule(path)) for path in reduction.stacks}
        stacks = [path for path, module in source.module.named_modules() if id(module) in lists]
        for mutant in (*mutants, *((another_mask,) if name == "qwen2_5_vl" and file == VISION_FILE else ())):
            model = onnx.load(tmp_path / "full" / file)
            assert mutant(Graph(model, arrays, stacks[-1] if stacks else "")), (file, mutant.__name__)
            wrong = tmp_path / "wrong"
            wrong.mkdir(exist_ok=True)
            for other in MUTANTS:
                onnx.save(model if other == file else onnx.load(tmp_path / "full" / other), wrong / other)
            try:
                graphs.compare(wrong)
            except StoredError:
                continue
            missed.append((file, mutant.__name__))
    assert not missed


@pytest.mark.all
@pytest.mark.parametrize(
    ("layout", "broken"), [("bundle", None), ("transformers.js", None), ("bundle", weight_of_the_next)]
)
def test_a_conversion_says_on_how_many_layers_the_grid_ran(
    layout: str, broken: Callable[[pytest.MonkeyPatch], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (by_layers, reductions_of):
        monkeypatch.setattr(module, "LARGE", 0)
    if broken is not None:
        broken(monkeypatch)
    folder = saved(idefics(), tmp_path / "idefics3")
    result = posexport.convert(folder, tmp_path / "bundle", layout=layout, lengths=[17], keep_failed=True)
    assert result.report is not None
    assert result.report.passed == (broken is None), result.report.describe()
    if broken is None:
        assert "on 4 of 14 layers" in result.report.describe()
        assert result.manifest is not None
        proof = result.manifest.parity.reduced
        assert proof is not None
        assert (proof.kept, proof.layers) == (4, 14)


def gemma(size: int) -> Any:
    """``size``: of the embedding of each token for every layer."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    layers = {"num_hidden_layers": 8, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2}
    words = {**WORDS, **heads, **layers, "hidden_size": 32, "pad_token_id": 0, "global_head_dim": 12}
    words |= {"num_kv_shared_layers": 0, "sliding_window": 3, "hidden_size_per_layer_input": size}
    images = {**IMAGES, **heads, "num_key_value_heads": 4, "patch_size": 2}
    config = transformers.Gemma4Config(
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        audio_token_id=IMAGE + 2,
        audio_config=None,
        text_config={**words, "vocab_size_per_layer_input": VOCAB},
        vision_config={**images, "pooling_kernel_size": 2, "position_embedding_size": 40},
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def test_all_words_are_kept_where_code_looks_up_the_image_s(tmp_path: Path) -> None:
    assert reduced(gemma(0), tmp_path / "blocks").words is None
    reason = reduction_of(load_source(saved(gemma(6), tmp_path / "layers"), LoadOptions()))
    assert reason == "its embeddings have a vector of each token for every layer"
