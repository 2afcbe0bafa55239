"""Files written after the pattern of a public case, where the tool that made the fault is not in the environment.

Each function is a maker of `tests.inspect.audit.corpus`: it writes into a folder, and returns the file.
"""

from pathlib import Path

from tests.inspect.audit.graphs import saved

_QWEN_VL = '{"text_config": {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}}'


def one_row_of_positions(folder: Path, *, fault: bool) -> Path:
    """The embeddings of text and image are joined outside; positions are one row, or time, height and width."""
    rows = "" if fault else "3, "
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        language (float[B, T, 20] inputs_embeds, int64[{rows}B, T] position_ids) => (float[{rows}B, T, 8] angles)
        <float[8] frequencies = {{1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003}}, int64[1] last = {{-1}}>
        {{
            positions = Cast <to = 1> (position_ids)
            column = Unsqueeze (positions, last)
            angles = Mul (column, frequencies)
        }}"""
    return saved(text, folder, files={"config.json": _QWEN_VL})


def window_of_the_config(folder: Path, *, fault: bool) -> Path:
    """GroupQueryAttention of a model with a window, which is an attribute of the operator."""
    window = "" if fault else ", local_window_size = 7"
    text = f"""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        decoder (int64[B, T] input_ids, float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v,
                 float[B, 5, P, 4] past_key, float[B, 5, P, 4] past_value, int32[B] last, int32 total)
            => (float[B, T, 20] y, float[B, 5, S, 4] present_key, float[B, 5, S, 4] present_value)
        {{
            y, present_key, present_value = com.microsoft.GroupQueryAttention
                <num_heads = 5, kv_num_heads = 5{window}> (q, k, v, past_key, past_value, last, total)
        }}"""
    config = '{"model_type": "phi3", "sliding_window": 7, "max_position_embeddings": 96}'
    return saved(text, folder, files={"config.json": config})


def features_of_inner_layers(folder: Path, *, fault: bool) -> Path:
    """A vision encoder with features of two depths, and a decoder that takes one or both."""
    deep = "" if fault else ", float[N, 20] deepstack_features"
    joined = "joined = Identity (image_features)" if fault else "joined = Add (image_features, deepstack_features)"
    decoder = f"""
        <ir_version: 8, opset_import: ["": 18]>
        decoder (float[N, 20] inputs_embeds, float[N, 20] image_features{deep}) => (float[N, 20] y)
        {{
            {joined}
            y = Add (inputs_embeds, joined)
        }}"""
    vision = """
        <ir_version: 8, opset_import: ["": 18]>
        vision (float[N, 20] pixel_values) => (float[N, 20] image_features, float[N, 20] deepstack_features)
        {
            deepstack_features = Cos (pixel_values)
            image_features = Cos (deepstack_features)
        }"""
    saved(decoder, folder, "decoder.onnx")
    return saved(vision, folder, "vision_encoder.onnx")


def integer_mask(folder: Path, *, fault: bool) -> Path:
    """The encoder's mask of ones and zeros as the bias of Attention, which only a boolean or a scaled mask may be."""
    bias = "bias = Cast <to = 1> (keys)" if fault else "bias = Cast <to = 9> (keys)"
    text = f"""
        <ir_version: 10, opset_import: ["": 23]>
        encoder (float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v, int64[B, T] attention_mask)
            => (float[B, T, 20] y)
        <int64[2] axes = {{1, 2}}>
        {{
            keys = Unsqueeze (attention_mask, axes)
            {bias}
            y = Attention <q_num_heads = 5, kv_num_heads = 5> (q, k, v, bias)
        }}"""
    return saved(text, folder)


def attention_of_opset_25(folder: Path, *, fault: bool) -> Path:
    text = f"""
        <ir_version: 11, opset_import: ["": {25 if fault else 24}]>
        encoder (float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v) => (float[B, T, 20] y)
        {{ y = Attention <q_num_heads = 5, kv_num_heads = 5> (q, k, v) }}"""
    return saved(text, folder)


def folded_shape(folder: Path, *, fault: bool) -> Path:
    """An optimiser folded Shape of a dynamic axis to the number of the example, with which a Reshape splits heads."""
    folded = "length = Constant <value_ints = [11]> ()"
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        split (float[B, T, 20] x) => (float[B, T, 5, 4] y)
        <int64[2] heads = {{5, 4}}>
        {{
            batch = Shape <start = 0, end = 1> (x)
            {folded if fault else "length = Shape <start = 1, end = 2> (x)"}
            shape = Concat <axis = 0> (batch, length, heads)
            y = Reshape (x, shape)
        }}"""
    return saved(text, folder)


def head_size_of_other_layers(folder: Path, *, fault: bool) -> Path:
    """A layer with heads of 10 elements gets the cache of a layer with heads of 6."""
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        decoder (float[B, 5, T, 10] q, float[B, 5, T, 10] k, float[B, 5, P, {6 if fault else 10}] past_key)
            => (float[B, 5, T, S] scores, float[B, 5, S, 10] present_key)
        {{
            present_key = Concat <axis = 2> (past_key, k)
            turned = Transpose <perm = [0, 1, 3, 2]> (present_key)
            scores = MatMul (q, turned)
        }}"""
    return saved(text, folder)
