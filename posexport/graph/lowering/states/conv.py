"""A causal convolution with a state by Concat, Conv and Slice.

A row with padding is read in the order padding, past inputs, tokens, so that no window has padding in it; its outputs
are put back afterwards. Ifs spare that to calls without padding.
"""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering, Outputs
from posexport.graph.ops.states import ConvolutionSpec

#: an end of a Slice that is beyond any length
_END = 1 << 62


class ConcatenatedConv(Lowering[ConvolutionSpec]):
    """The past inputs before the new ones: a Conv, or a product and a sum for a decode step without padding."""

    name = "conv"

    def build(self, g: Builder, spec: ConvolutionSpec, x: Inputs, target: Target) -> Outputs:
        past, new = g.size(x["past"], 2), g.size(x["x"], 2)
        inputs = g.Concat(x["past"], x["x"], axis=2)
        unpadded = g.Equal(g.ReduceMin(x["mask"], keepdims=0), 1)
        # one branch a layer in a decode step, which costs more than what is computed in it
        out, present = g.if_(
            g.And(unpadded, g.scalar(g.Equal(new, [1]))),
            lambda: (_of_one_token(g, spec, x, inputs), _last_inputs(g, inputs, new)),
            lambda: _of_tokens(g, x, inputs, unpadded, past, new),
            branches=("one_token", "many_tokens"),
            name=("convolved", "last_inputs"),
        )
        return g.Mul(out, g.Sigmoid(out)) if spec.silu else out, present


def _of_one_token(g: Builder, spec: ConvolutionSpec, x: Inputs, inputs: ir.Value) -> ir.Value:
    total = g.ReduceSum(g.Mul(inputs, g.Squeeze(x["weight"], [1])), [2], keepdims=1)
    return g.Add(total, g.Unsqueeze(x["bias"], [1])) if spec.biased else total


def _of_tokens(
    g: Builder, x: Inputs, inputs: ir.Value, unpadded: ir.Value, past: ir.Value, new: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The outputs and the last inputs of a call of any number of tokens."""
    ordered = g.if_(
        unpadded,
        lambda: inputs,
        lambda: _padding_first(g, inputs, x["mask"], past, new),
        branches=("no_padding", "padding_first"),
        name="ordered",
    )
    convolved = g.Conv(ordered, x["weight"], x.get("bias"), group=g.attribute("channels", int))
    out = g.if_(
        unpadded,
        lambda: convolved,
        lambda: _put_back(g, convolved, x["mask"], new),
        branches=("in_place", "put_back"),
        name="out_of_tokens",
    )
    return out, _last_inputs(g, ordered, new)


def _last_inputs(g: Builder, inputs: ir.Value, new: ir.Value) -> ir.Value:
    """The last W - 1 of the inputs [B, C, W - 1 + T]."""
    return g.slice(inputs, new, [_END], 2)


def _padding_first(g: Builder, inputs: ir.Value, mask: ir.Value, past: ir.Value, new: ir.Value) -> ir.Value:
    """The inputs [B, C, W - 1 + T] with each row in the order padding, past inputs, tokens."""
    total = g.Add(past, new)
    is_token = g.Pad(mask, g.shape([0], past, [0, 0]), 1)
    key = g.Add(g.range(g.Sub(past, past), total), g.Mul(is_token, total))
    _, order = g.several("TopK", ["", ""], key, total, axis=1, largest=0, sorted=1)
    return _gathered(g, inputs, order)


def _put_back(g: Builder, out: ir.Value, mask: ir.Value, new: ir.Value) -> ir.Value:
    """The outputs [B, C, T] of tokens where these are in the call."""
    padding = g.Sub(new, g.ReduceSum(mask, [1], keepdims=1))
    return _gathered(g, out, g.Max(g.Sub(g.Add(padding, g.CumSum(mask, 1)), [1]), [0]))


def _gathered(g: Builder, values: ir.Value, places: ir.Value) -> ir.Value:
    """[B, C, S] at places [B, S] of each row."""
    index = g.Expand(g.Unsqueeze(places, [1]), g.Shape(values))
    return g.GatherElements(values, index, axis=2)
