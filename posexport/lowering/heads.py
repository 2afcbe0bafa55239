"""Statements that take heads apart, from [B, T, H D] to [B, H, T, D], and put them side by side again."""

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from posexport.graph.builder import Attribute, Builder
from posexport.lowering.text import named


def split_heads(g: Builder, x: ir.Value, shape: Attribute) -> ir.Value:
    """[B, T, H D] -> [B, H, T, D], by an attribute with the shape [0, 0, H, -1]."""
    return g.Transpose(g.Reshape(x, shape), perm=[0, 2, 1, 3], name=f"{x.name}_split")


def pack_heads(g: Builder, x: ir.Value) -> ir.Value:
    """[B, H, T, D] -> [B, T, H D]."""
    return g.Reshape(g.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1], name=f"{x.name}_packed")


def apart(heads_of: Mapping[str, str]) -> list[str]:
    """Statements that give ``<name>_apart`` for each name, whose attribute holds the shape [0, 0, H, -1]."""
    return [
        statement
        for name, attribute in heads_of.items()
        for statement in (
            f"{name}_by_head = Constant<value_ints: ints = @{attribute}>()",
            f"{name}_with_heads = Reshape({name}, {name}_by_head)",
            f"{name}_apart = Transpose<perm = [0, 2, 1, 3]>({name}_with_heads)",
        )
    ]


def side_by_side(value: str, to: str) -> list[str]:
    """Statements that give ``to``, [B, T, H D], from ``value``, [B, H, T, D]."""
    return [
        f"{to}_by_token = Transpose<perm = [0, 2, 1, 3]>({value})",
        f"{to}_all_heads = Constant<value_ints = [0, 0, -1]>()",
        f"{to} = Reshape({to}_by_token, {to}_all_heads)",
    ]


def around(heads_of: Mapping[str, str], body: Sequence[str], gives: str) -> list[str]:
    """A body for heads apart, that gives ``gives``, in a function that takes and gives them side by side."""
    inner = named(body, **{name: f"{name}_apart" for name in heads_of})
    inner = [re.sub(rf"\b{gives}\b", f"{gives}_apart", line) for line in inner]
    return [*apart(heads_of), *inner, *side_by_side(f"{gives}_apart", gives)]
