"""Attention over the whole capacity of a static KV cache without its unused slots: their scores and values never count.

Unused slots may hold NaN or infinities, which no added mask and no probability of zero takes out of a product. Scores
are few in a decode step, so those of unused slots are cut off before the softmax. Values are as many as the cache is
large: cutting them off would copy them. Zero times NaN or infinity is NaN, so a context without NaN is right; one with
NaN is computed again from a copy of the used values.
"""

from collections.abc import Callable

#: from the name of a result, of the probabilities and of the values to statements that give their product
Product = Callable[[str, str, str], list[str]]


def used_scores(to: str, score: str, used: str) -> list[str]:
    """Statements that give ``to``, the scores of the first ``used`` (int64 [1]) slots, from those of the capacity."""
    return [
        f"{to}_start = Constant<value_ints = [0]>()",
        f"{to}_axis = Constant<value_ints = [-1]>()",
        f"{to} = Slice({score}, {to}_start, {used}, {to}_axis)",
    ]


def used_context(to: str, *, probs: str, v: str, used: str, unused: str, axes: int, product: Product) -> list[str]:
    """Statements that give ``to``, [..., T, V], from ``probs [..., T, S]`` and the first S slots of ``v [..., C, V]``.

    ``used``, ``unused``: S and C - S, int64 [1]. ``axes``: the rank of both.
    """
    before = ", ".join(["0"] * (2 * axes - 1))
    return [
        f"{to}_before = Constant<value_ints = [{before}]>()",
        f"{to}_pads = Concat<axis = 0>({to}_before, {unused})",
        f"{to}_probs = Pad({probs}, {to}_pads)",
        *product(f"{to}_of_all", f"{to}_probs", v),
        f"{to}_sum = ReduceSum<keepdims = 0>({to}_of_all)",
        f"{to}_spoiled = IsNaN({to}_sum)",
        f"{to} = If({to}_spoiled) <",
        f"  then_branch = without_unused_slots () => ({to}_of_used) {{",
        f"    {to}_start = Constant<value_ints = [0]>()",
        f"    {to}_axis = Constant<value_ints = [-2]>()",
        f"    {to}_values = Slice({v}, {to}_start, {used}, {to}_axis)",
        *product(f"{to}_of_used", probs, f"{to}_values"),
        "  },",
        f"  else_branch = of_all_slots () => ({to}_as_it_is) {{ {to}_as_it_is = Identity({to}_of_all) }}",
        ">",
    ]
