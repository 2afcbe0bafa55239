"""Splits packed heads [B, T, H D] into [B, H, T, D], and packs them again."""

import onnx_ir as ir

from posexport.graph.builder import Attribute, Builder


def split_heads(g: Builder, x: ir.Value, shape: Attribute) -> ir.Value:
    """[B, T, H D] -> [B, H, T, D], by an attribute with the shape [0, 0, H, -1]."""
    return g.Transpose(g.Reshape(x, shape), perm=[0, 2, 1, 3], name=f"{x.name}_split")


def pack_heads(g: Builder, x: ir.Value) -> ir.Value:
    """Reshapes split heads to packed heads: [B, H, T, D] -> [B, T, H D]. Adds a Transpose and a Reshape."""
    return g.Reshape(g.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1], name=f"{x.name}_packed")
