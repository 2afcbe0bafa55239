"""PX514: Swin's windows that no picture size shifts, because the example's map was no larger than a window."""

from collections.abc import Iterator

from posexport.graph.dataflow import sources
from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: of which every second block shifts its windows and masks what meets at the edges
_MODEL = "swin"


def _check(subject: Subject) -> Iterator[Place]:
    config = subject.files.object("config.json")
    depths, window = config.get("depths"), config.get("window_size")
    if config.get("model_type") != _MODEL or not isinstance(depths, list) or not isinstance(window, int):
        return
    if not all(isinstance(depth, int) for depth in depths) or not _has_free_size(subject):
        return
    attentions = subject.attentions
    shifting = sum(depth // 2 for depth in depths)
    masked = sum(map(_is_masked, attentions))
    if len(attentions) != sum(depths) or masked >= shifting:
        return
    yield Place(
        f"{shifting - masked} of {shifting} blocks that shift their windows of {window} x {window} do not: the "
        "picture of the example had maps no larger than a window there, and larger pictures are declared",
        [attention.node for attention in attentions if not _is_masked(attention)],
    )


def _has_free_size(subject: Subject) -> bool:
    """Whether height or width of a picture is free."""
    pictures = [sizes for value in subject.graph.inputs if (sizes := subject.sizes.of(value)) and len(sizes) == 4]
    return any(isinstance(size, str) for sizes in pictures for size in sizes[2:])


def _is_masked(attention: Attention) -> bool:
    """Whether scores get something that depends on the size of the picture; a bias of positions is a constant."""
    added = [*attention.added, *(condition for condition, _, _ in attention.fills)]
    return any(value.is_graph_input() for mask in added for value in sources(mask, breaks=()))


RULE = Rule(
    code="PX514",
    name="unshifted-windows",
    severity="error",
    finds="blocks of Swin whose windows are not shifted, in a graph for pictures of every size",
    why="transformers decides by the size of the map, in Python, whether a block shifts its windows: traced with a "
    "small picture, the last stages never do, and larger pictures have other features.",
    remedy="Declare the height and width of the example as fixed, or export with a picture whose smallest map is "
    "larger than a window; posexport convert computes the shift from the size.",
    check=_check,
    reads="folder",
    files={"config.json": '{"model_type": "swin", "depths": [2], "window_size": 4}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        same (float[B, 3, H, W] pixel_values, float[N, 2, 16, 3] q, float[N, 2, 3, 16] k, float[N, 2, 16, 3] v)
            => (float[N, 2, 16, 3] y)
        <float[1] bias = {0.5}>
        {
            products1 = MatMul (q, k)
            scores1 = Add (products1, bias)
            p1 = Softmax <axis = -1> (scores1)
            x = MatMul (p1, v)
            products2 = MatMul (x, k)
            scores2 = Add (products2, bias)
            p2 = Softmax <axis = -1> (scores2)
            y = MatMul (p2, v)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        shifted (float[B, 3, H, W] pixel_values, float[N, 2, 16, 3] q, float[N, 2, 3, 16] k, float[N, 2, 16, 3] v)
            => (float[N, 2, 16, 3] y)
        <float[1] bias = {0.5}>
        {
            products1 = MatMul (q, k)
            scores1 = Add (products1, bias)
            p1 = Softmax <axis = -1> (scores1)
            x = MatMul (p1, v)
            products2 = MatMul (x, k)
            size = Shape <start = 2, end = 3> (pixel_values)
            mask = Cast <to = 1> (size)
            scores2 = Add (products2, mask)
            p2 = Softmax <axis = -1> (scores2)
            y = MatMul (p2, v)
        }
    """,
)
