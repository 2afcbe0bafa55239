"""The statements, in the ONNX text format, that attention's lowerings are put together from.

All work on names in scope: ``q, k, v`` and what else the kind's node takes (`posexport.ops.attention`), and ``s``, the
scale.
"""

from collections.abc import Sequence
from dataclasses import replace

from posexport.lowering.heads import apart
from posexport.ops.attention import AttentionKind
from posexport.ops.operator import DOMAIN

SCALE = ["s1 = Constant<value_float: float = @scale>()", "s = CastLike(s1, q)"]


def call(kind: AttentionKind, which: str, **renamed: str) -> str:
    """The text that calls a kind's operator for ``which`` part; ``renamed`` gives the names in scope."""
    operator = kind.operators[which]
    names = [*operator.takes, *(f"{which}_{own}" for own in operator.own), "qpos", "kpos"]
    return f"{DOMAIN}.{operator.name}({', '.join(renamed.get(name, name) for name in names)})"


def base_scores(kind: AttentionKind, *, q: str, qs: str, qpos: str) -> list[str]:
    """Statements that give ``score``, scaled: q k^T or the operator in its place. ``kt`` is in scope for the first."""
    if kind.base is None:
        return multiplied(kind, "score", qs, "kt")
    return [f"raw_score = {call(kind, 'base', q=q, qpos=qpos)}", "score = Mul(raw_score, s)"]


def multiplied(kind: AttentionKind, to: str, x: str, y: str) -> list[str]:
    """Statements that give ``to``, the products of ``x [B, H, T, N]`` with ``y``, keys or values of every head.

    Where groups of heads share these, the heads of a group stand one below the other: one product a group, no copies.
    """
    if not kind.grouped:
        return [f"{to} = MatMul({x}, {y})"]
    return [
        # not of y: a transposed k that nothing but a product reads is fused into it
        f"{to}_lead = Shape<start = 0, end = 2>(k)",
        f"{to}_inner = Shape<start = 3, end = 4>({x})",
        f"{to}_rest = Constant<value_ints = [-1]>()",
        f"{to}_stacked = Concat<axis = 0>({to}_lead, {to}_rest, {to}_inner)",
        f"{to}_x = Reshape({x}, {to}_stacked)",
        f"{to}_product = MatMul({to}_x, {y})",
        f"{to}_heads = Shape<start = 0, end = 3>({x})",
        f"{to}_shape = Concat<axis = 0>({to}_heads, {to}_rest)",
        f"{to} = Reshape({to}_product, {to}_shape)",
    ]


def prepared_keys(kind: AttentionKind) -> list[str]:
    """The statements that give ``kt`` and ``ks``, keys transposed and scaled, where they are needed."""
    lines = [] if kind.base is not None else ["kt = Transpose<perm = [0, 1, 3, 2]>(k)"]
    return [*lines, *scaled_keys(kind)]


def scaled_keys(kind: AttentionKind) -> list[str]:
    """The statement that gives ``ks`` where a term takes it."""
    linear = kind.scores is not None and kind.scores.scaled and kind.scores.linear and "k" in kind.scores.takes
    return [f"ks = Mul({heads(kind, 'k')}, s)"] if linear and not kind.biased else []


def heads(kind: AttentionKind, name: str) -> str:
    """The name of ``q``, ``k`` or ``v`` with its heads apart."""
    return f"{name}_apart" if kind.joined else name


def read_apart(kind: AttentionKind) -> list[str]:
    """Statements that take apart the heads of what the score term reads, where they stand side by side."""
    read = kind.scores.takes if kind.scores is not None and not kind.biased else ()
    return apart({name: by for name, by in kind.heads_of.items() if name in read})


def term(kind: AttentionKind, *, q: str, qs: str, qpos: str) -> list[str]:
    """Statements that give ``term``, what the kind's score operator adds to scores that are scaled.

    ``q`` and ``qs`` name the queries as they are and scaled, ``qpos`` their positions; ``ks`` is in scope. A term that
    is linear in both takes them scaled: that saves a pass over the scores.
    """
    assert kind.scores is not None
    if kind.termed:
        return []
    if not kind.scores.scaled:
        return [f"term = {call(kind, 'scores', q=q, k=heads(kind, 'k'), qpos=qpos)}"]
    if not kind.scores.linear or not kind.scores.takes:
        raw = call(kind, "scores", q=q, k=heads(kind, "k"), qpos=qpos)
        return [f"raw_term = {raw}", "term = Mul(raw_term, s)"]
    along = {f"scores_{own}": f"scaled_{own}" for own in kind.scores.scaled_along}
    lines = [f"{scaled} = Mul({own}, s)" for own, scaled in along.items()]
    return [*lines, f"term = {call(kind, 'scores', q=qs, k='ks', qpos=qpos, **along)}"]


def later(like: str, *, qpos: str) -> list[str]:
    """Statements that give ``later``, which keys stand after the query, [T, S], and ``low``, what these get."""
    return [
        "minus_one = Constant<value_ints = [-1]>()",
        f"q_at = Unsqueeze({qpos}, minus_one)",
        "later = Less(q_at, kpos)",
        *lowest(like),
    ]


def lowest(like: str) -> list[str]:
    """Statements that give ``low``, of the type of ``like``."""
    return ["low1 = Constant<value_float: float = @lowest>()", f"low = CastLike(low1, {like})"]


def added(kind: AttentionKind, score: str, *, q: str, qs: str, qpos: str) -> tuple[list[str], str]:
    """Statements that add term and mask to the value named ``score``, which is scaled, and drop keys; their result."""
    if kind.biased:
        return [f"summed = Add({score}, bias)"], "summed"
    lines = []
    if kind.scores is not None:
        lines += [*term(kind, q=q, qs=qs, qpos=qpos), f"with_term = Add({score}, term)"]
        score = "with_term"
    if kind.causal:
        lines += [*later("q", qpos=qpos), f"seen = Where(later, low, {score})"]
        score = "seen"
    if kind.mask != "none":
        lines.append(f"masked = Add({score}, mask)")
        score = "masked"
    return lines, score


def additive(kind: AttentionKind, *, q: str, qs: str, qpos: str, like: str = "q") -> tuple[list[str], str | None]:
    """Statements that give all that is added to the scores as one value, [B or 1, H or 1, T, S]; its name."""
    if kind.biased:
        return [], "bias"
    lines, found = [], None
    if kind.scores is not None:
        lines, found = term(kind, q=q, qs=qs, qpos=qpos), "term"
    if kind.causal:
        lines += later(like, qpos=qpos)
        if found is None:
            lines += [
                "no_score1 = Constant<value_float = 0.0>()",
                f"no_score = CastLike(no_score1, {like})",
                "dropped_pairs = Where(later, low, no_score)",
                "front = Constant<value_ints = [0, 1]>()",
                "dropped = Unsqueeze(dropped_pairs, front)",
            ]
        else:
            lines.append(f"dropped = Where(later, low, {found})")
        found = "dropped"
    masks, found = with_mask(kind, found, q=q)
    return [*lines, *masks], found


def with_mask(kind: AttentionKind, found: str | None, *, q: str) -> tuple[list[str], str | None]:
    """Statements that add the mask to what ``found`` names, if anything; the name of all that is added."""
    if kind.mask != "none" and found is not None:
        return [f"with_mask = Add({found}, mask)"], "with_mask"
    if kind.mask == "keys":
        lines = [
            f"mask_queries = {queries(kind, q)}",
            "mask_key = Constant<value_ints = [1]>()",
            "mask_shape = Concat<axis = 0>(mask_queries, mask_key)",
            "mask_rows = Expand(mask, mask_shape)",
        ]
        return lines, "mask_rows"
    return [], "mask" if kind.mask == "pairs" else found


def drops_some(mask: str, to: str) -> list[str]:
    """Statements that give the bool ``to``: whether the mask over keys drops any of them."""
    return [f"{to}_least = ReduceMin<keepdims = 0>({mask})", f"{to} = Cast<to = 9>({to}_least)"]


def either(condition: str, to: str, then: Sequence[str], otherwise: Sequence[str]) -> list[str]:
    """Statements that give ``to`` from those that give ``<to>_then`` or ``<to>_else``, by the bool ``condition``."""
    return [
        f"{to} = If({condition}) <",
        f"  then_branch = then_{to} () => ({to}_then) {{ {' '.join(then)} }},",
        f"  else_branch = else_{to} () => ({to}_else) {{ {' '.join(otherwise)} }}",
        ">",
    ]


def probabilities(kind: AttentionKind, score: str, to: str = "probs") -> list[str]:
    """Statements that give ``to`` from the value named ``score``, [B, H, T, S]."""
    if not kind.sink:
        return [f"{to} = Softmax<axis = -1>({score})"]
    return [
        "sink_heads = Constant<value_ints = [1, -1, 1, 1]>()",
        "sink_each = Reshape(sink, sink_heads)",
        f"sink_lead = Shape<start = 0, end = 3>({score})",
        "sink_one = Constant<value_ints = [1]>()",
        "sink_shape = Concat<axis = 0>(sink_lead, sink_one)",
        "sink_column = Expand(sink_each, sink_shape)",
        f"with_sink = Concat<axis = -1>({score}, sink_column)",
        "probs_and_sink = Softmax<axis = -1>(with_sink)",
        "sink_zero = Constant<value_ints = [0]>()",
        "sink_last = Constant<value_ints = [-1]>()",
        f"{to} = Slice(probs_and_sink, sink_zero, sink_last, sink_last)",
    ]


def by_products(
    kind: AttentionKind, to: str, *, q: str = "q", qpos: str = "qpos", drops: str | None = None
) -> list[str]:
    """From queries ``q`` to the value called ``to``, by products, sums and a softmax; ``kt`` and ``ks`` in scope.

    ``drops`` names what `drops_some` gives, where no pass is to be spent on a mask that drops nothing.
    """
    lines = [f"qs = Mul({q}, s)", *base_scores(kind, q=q, qs="qs", qpos=qpos)]
    if drops:
        summed, score = added(replace(kind, mask="none"), "score", q=q, qs="qs", qpos=qpos)
        masked = [f"masked = Add({score}, mask)", *probabilities(kind, "masked", "probs_then")]
        lines += [*summed, *either(drops, "probs", masked, probabilities(kind, score, "probs_else"))]
    else:
        summed, score = added(kind, "score", q=q, qs="qs", qpos=qpos)
        lines += [*summed, *probabilities(kind, score)]
    if kind.values is None:
        return [*lines, *multiplied(kind, to, "probs", "v")]
    extra = f"extra = {call(kind, 'values', qpos=qpos)}"
    return [*lines, *multiplied(kind, "plain", "probs", "v"), extra, f"{to} = Add(plain, extra)"]


def by_operator(
    kind: AttentionKind, to: str, *, q: str = "q", qpos: str = "qpos", drops: str | None = None
) -> list[str]:
    """The same by ai.onnx Attention (opset 23), for kinds that `operator_refusal` lets pass.

    ``ks``, and what `read_apart` gives, in scope. ONNX Runtime's kernel starts the product of queries and keys from
    what is added to it, which then costs no pass.
    """

    def attention(to: str, mask: str | None) -> str:
        given = ", ".join([q, "k", "v", *([] if mask is None else [mask])])
        counts = ", q_num_heads: int = @heads, kv_num_heads: int = @groups" * kind.joined
        return f"{to} = Attention<scale: float = @scale{counts}>({given})"

    if not drops:
        lines, mask = summands(kind, q=q, qpos=qpos)
        return [*lines, attention(to, mask)]
    lines, found = summands(replace(kind, mask="none"), q=q, qpos=qpos)
    masks, mask = with_mask(kind, found, q=q)
    masked = [*masks, attention(f"{to}_then", mask)]
    return [*lines, *either(drops, to, masked, [attention(f"{to}_else", found)])]


def summands(kind: AttentionKind, *, q: str = "q", qpos: str = "qpos") -> tuple[list[str], str | None]:
    """`additive`, and the scaled queries where a term reads them."""
    lines = []
    if kind.scores is not None and not kind.biased and kind.scores.takes:
        q = heads(kind, q)
        lines.append(f"qs = Mul({q}, s)")
    sums, found = additive(kind, q=q, qs="qs", qpos=qpos)
    return [*lines, *sums], found


def queries(kind: AttentionKind, q: str = "q") -> str:
    """The expression for the number of queries, int64 [1]."""
    return f"Shape<start = 1, end = 2>({q})" if kind.joined else f"Shape<start = 2, end = 3>({q})"


def cache_refusal(kind: AttentionKind) -> str | None:
    """Why a lowering that knows nothing of caches of fixed size does not apply; None where it need not."""
    fixed = kind.static or kind.cached
    return "keys and values stand in a cache of fixed size, some places of which are free" if fixed else None


def operator_refusal(kind: AttentionKind) -> str | None:
    """Why no operator that computes attention as a whole can stand for ``kind``; None where one can."""
    if kind.base is not None:
        return f"{kind.base.name} stands in the place of the product of queries and keys"
    if kind.values is not None:
        return f"{kind.values.name} needs the probabilities"
    return "a sink has no key" if kind.sink else None
