"""Unpadding for devices: linear layers run on real tokens only, around attention that is the target's.

The form of FlashAttention's ``unpad_input`` and ``pad_input`` (Dao et al.) with attention over padded rows: its inputs
are re-padded, by one ScatterND each, and its context is gathered, by one Gather. There is no branch, for which the host
would wait. ONNX Runtime's PackedAttention would save attention's padding too: it has no CPU kernel, in which values
could be proven without a card, nor a bias by positions without padding, nor rows padded on the left.
"""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.passes.padding import new_tokens
from posexport.graph.passes.padding.between import Between
from posexport.graph.passes.padding.mask import PaddingMask
from posexport.graph.queries import width


class AroundAttention:
    """The real tokens of a call by the padding mask of attention, and the nodes that re-pad rows.

    Before: ``Gemm -> Reshape -> posexport::Attention -> Reshape -> Gemm``
    After:  ``Gemm -> ScatterND -> Reshape -> posexport::Attention -> Reshape -> Gather(.., real tokens) -> Gemm``
    """

    def __init__(self, g: Builder, mask: PaddingMask) -> None:
        self._g = g
        self._tokens = new_tokens.find(g, mask.tokens, mask.tokens)
        self._indices = g.Unsqueeze(self._tokens.keep, [1])
        self._is_real = g.Cast(g.Reshape(mask.tokens, [-1, 1]), to=ir.DataType.BOOL, name="is_real")

    @property
    def keep(self) -> ir.Value:
        """Indices of the computed tokens, [N]."""
        return self._tokens.keep

    def put_back(self, rows: ir.Value) -> ir.Value:
        """``rows`` [N, C] with zeros at padding, [B T, C]."""
        channels = width(rows)
        assert channels is not None
        zeros = self._g.ConstantOfShape(self._g.shape(self._tokens.whole, [channels]))
        every = self._g.ScatterND(zeros, self._indices, rows, name=f"{rows.name}_put_back")
        every.shape, every.type = rows.shape, rows.type
        return every

    def context(self, between: Between, matrices: set[ir.Value]) -> ir.Value:
        """The rows of the context of the computed tokens, by attention over padded rows."""
        read = dict.fromkeys(value for node in between.nodes for value in node.inputs if value in matrices)
        every = between.at_once(self._g, {value: self.put_back(value) for value in read if value is not None})
        return self._g.Gather(every, self.keep, axis=0)

    def for_all_tokens(self, reshape: ir.Node) -> ir.Value:
        """What ``reshape`` makes of rows, for all tokens; an output of the graph is zero at padding."""
        rows, shape = reshape.inputs
        assert rows is not None
        every = self.put_back(rows)
        if reshape.outputs[0].is_graph_output():
            every = self._g.Where(self._is_real, every, 0.0)
        return self._g.Reshape(every, shape, allowzero=1)
