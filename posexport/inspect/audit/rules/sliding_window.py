"""PX506: a sliding window in config.json that no attention of the graph applies."""

from collections.abc import Iterator, Mapping
from typing import Any

from posexport.graph.queries import COMPARISONS
from posexport.inspect.audit.analyses.described import whole
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: of which ``sliding_window`` holds for all layers, or for every second one, whether layers are listed or not
_MODELS = frozenset(
    ["mistral", "mixtral", "phi3", "phimoe", "starcoder2", "gemma2", "gemma3", "gemma3_text", "gpt_oss"]
)
#: operators that make a window of positions
_WINDOWING = COMPARISONS | {"Sub", "Add", "Slice", "Min", "Max", "Clip", "Range", "Pad", "Trilu", "Mod", "Div", "Where"}


def _check(subject: Subject) -> Iterator[Place]:
    window = _window(subject.config)
    attentions = subject.attentions
    if window is None or not attentions or not (subject.roles.ids or subject.roles.past):
        return
    longest = whole(subject.config, "max_position_embeddings")
    if (longest is not None and longest <= window) or _mask_is_input(subject) or _is_applied(subject, window):
        return
    yield Place(
        f"config.json says sliding_window = {window}, and none of the graph's {len(attentions)} attentions leaves out "
        "keys beyond it: no mask is made with this number, and no local_window_size is set",
        [attentions[0].node],
    )


def _window(config: Mapping[str, Any]) -> int | None:
    """The window of at least one layer; None if there is none, or it is not certain."""
    window = whole(config, "sliding_window")
    layers = config.get("layer_types")
    if window is None or config.get("use_sliding_window") is False:
        return None
    if isinstance(layers, list):
        return window if "sliding_attention" in layers else None
    return window if config.get("model_type") in _MODELS or config.get("use_sliding_window") is True else None


def _mask_is_input(subject: Subject) -> bool:
    """Whether the caller makes the mask, of keys for each query."""
    shapes = [subject.sizes.of(value) for value in subject.roles.masks]
    return any(shape is None or len(shape) > 2 for shape in shapes)


def _is_applied(subject: Subject, window: int) -> bool:
    # attention in both directions has half of it on each side
    near = {sign * (size + add) for size in (window, window // 2) for sign in (1, -1) for add in (-1, 0, 1)} - {
        0,
        1,
        -1,
    }
    for node in subject.nodes:
        if node.attributes.get_int("local_window_size", -1) in near:
            return True
        if node.op_type not in _WINDOWING or node.domain:
            continue
        for value in node.inputs:
            array = subject.sizes.constant(value, 4)
            if array is not None and not near.isdisjoint(array.reshape(-1).tolist()):
                return True
    return False


RULE = Rule(
    code="PX506",
    name="sliding-window",
    severity="error",
    finds="config.json has a sliding window, and the graph's attention reads all keys",
    why="Up to the window nothing differs. Beyond it every layer reads keys that it was not trained with, and the text "
    "degrades: Phi-3-mini-4k wrote nonsense past half its context for this reason.",
    remedy="Export again with the window in the mask or in local_window_size of GroupQueryAttention; posexport convert "
    "does, and proves lengths beyond it.",
    check=_check,
    reads="folder",
    files={"config.json": '{"model_type": "mistral", "sliding_window": 5, "max_position_embeddings": 64}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        all_keys (int64[B, T] input_ids, float[B, T, 8] q, float[B, T, 8] k, float[B, T, 8] v,
                  float[B, 2, P, 4] past_key, float[B, 2, P, 4] past_value, int32[B] last, int32 total)
            => (float[B, T, 8] y, float[B, 2, S, 4] present_key, float[B, 2, S, 4] present_value)
        {
            y, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
                (q, k, v, past_key, past_value, last, total)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        window (int64[B, T] input_ids, float[B, T, 8] q, float[B, T, 8] k, float[B, T, 8] v,
                float[B, 2, P, 4] past_key, float[B, 2, P, 4] past_value, int32[B] last, int32 total)
            => (float[B, T, 8] y, float[B, 2, S, 4] present_key, float[B, 2, S, 4] present_value)
        {
            y, present_key, present_value =
                com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2, local_window_size = 5>
                (q, k, v, past_key, past_value, last, total)
        }
    """,
)
