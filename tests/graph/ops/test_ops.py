"""Every registered operator: its torch form and its ONNX function against its float64 oracle, and what they cost."""

import dataclasses
import zlib

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest
import torch

from posexport.graph.ops.operator import DOMAIN, OPERATORS, Case, Operator, protos, register
from posexport.graph.ops.skew import skew, unskew
from tests.tolerances import agree

EVERY = [pytest.param(o, id=o.name) for o in OPERATORS.values()]
#: all but those that stand in the place of q k^T: what pairs cost is their own affair
OF_POSITIONS = [p for p in EVERY if p.values[0].gives != "base"]
#: sizes at which the skew goes by whole chunks, and ones at which it does not for one number of either
CHUNKS = [
    Case(batch=2, heads=3, queries=64, keys=96, head_size=6, table=71, offset=32),
    Case(batch=1, heads=2, queries=32, keys=32, head_size=4, table=9),
    Case(batch=1, heads=2, queries=33, keys=63, head_size=4, table=90, offset=-7),
]
SKEWED = [o for o in OPERATORS.values() if any(proto.name == "Skew" for proto in protos(o.function, 18))]
EVERY_CASE = [
    pytest.param(o, c, id=f"{o.name}-{i}")
    for o in OPERATORS.values()
    for i, c in enumerate([*o.cases, *(CHUNKS if o in SKEWED else [])])
]
#: sizes at which a tensor of [T, S, D] would tower over all that an operator may need: all pairs, a block of queries
LARGE = [
    pytest.param(Case(batch=1, heads=2, queries=97, keys=89, head_size=48, table=100), id="whole"),
    pytest.param(Case(batch=1, heads=2, queries=16, keys=389, head_size=48, table=400, offset=100), id="block"),
]


def inputs(operator: Operator, case: Case, dtype=np.float64) -> dict[str, np.ndarray]:
    """Tensors by name, in the operator's order; values are exact in ``dtype``."""
    rng = np.random.default_rng(zlib.crc32(f"{operator.name} {case}".encode()))
    shapes = {
        "q": (case.batch, case.heads, case.queries, case.head_size),
        "k": (case.batch, case.heads, case.keys, case.head_size),
        "probs": (case.batch, case.heads, case.queries, case.keys),
    }
    found = {name: rng.standard_normal(shapes[name]) for name in operator.takes}
    if "probs" in found:
        found["probs"] = np.exp(found["probs"]) / np.exp(found["probs"]).sum(-1, keepdims=True)
    found |= dict(zip(operator.own, operator.draw(case, rng), strict=True))
    wide = np.promote_types(dtype, np.float32)
    for name, array in found.items():
        if array.dtype.kind == "f":
            found[name] = array.astype(wide if name in operator.wide else dtype)
    first = 5
    found["qpos"] = np.arange(first + case.offset, first + case.offset + case.queries)
    found["kpos"] = np.arange(first, first + case.keys)
    return found


def truth(operator: Operator, given: dict[str, np.ndarray]) -> np.ndarray:
    """The oracle's answer to the very numbers given."""
    wide = [a if a.dtype == np.int64 else a.astype(np.float64) for a in given.values()]
    return operator.oracle(*wide)


def eager(operator: Operator, given: dict[str, np.ndarray]) -> np.ndarray:
    return operator(*(torch.from_numpy(a) for a in given.values())).numpy()


def one_node(operator: Operator, given: dict[str, np.ndarray], *, whole: bool = False) -> onnx.ModelProto:
    """A model of one node of the operator, with the function attached and no size known."""
    functions = protos(operator.function, 18, whole=whole)
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), [f"{name}_{i}" for i in range(a.ndim)]
        )
        for name, a in given.items()
    ]
    dtype = onnx.helper.np_dtype_to_tensor_dtype(next(a.dtype for a in given.values() if a.dtype.kind == "f"))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(functions[-1].name, list(given), ["out"], domain=DOMAIN)],
        "one_node",
        infos,
        [onnx.helper.make_tensor_value_info("out", dtype, [f"out_{i}" for i in range(4)])],
    )
    return onnx.helper.make_model(
        graph,
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(DOMAIN, 1)],
        functions=functions,
    )


def run(model: onnx.ModelProto, given: dict[str, np.ndarray], *, optimise: bool = True) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


@pytest.mark.parametrize(("operator", "case"), EVERY_CASE)
def test_eager_is_the_oracle(operator, case):
    given = inputs(operator, case)
    agree(eager(operator, given), truth(operator, given), "operator", np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize(("operator", "case"), EVERY_CASE)
def test_onnx_function_is_the_oracle(operator, case, dtype):
    given = inputs(operator, case, dtype)
    model = one_node(operator, given)
    onnx.checker.check_model(model, full_check=True)
    agree(run(model, given)["out"], truth(operator, given), "operator", dtype)


@pytest.mark.parametrize("case", CHUNKS[:2])
@pytest.mark.parametrize("operator", SKEWED)
def test_function_for_whole_chunks_is_the_oracle(operator, case):
    given = inputs(operator, case, np.float32)
    model = one_node(operator, given, whole=True)
    assert "WholeSkew" in {function.name for function in model.functions}
    onnx.checker.check_model(model, full_check=True)
    agree(run(model, given)["out"], truth(operator, given), "operator", np.float32)


@pytest.mark.parametrize(("operator", "case"), EVERY_CASE)
def test_half_precision(operator, case):
    given = inputs(operator, case, np.float16)
    model = one_node(operator, given)
    onnx.checker.check_model(model, full_check=True)
    for got in (eager(operator, given), run(model, given)["out"]):
        assert got.dtype == np.float16
        agree(got, truth(operator, given), "operator in half precision", np.float16)


@pytest.mark.parametrize("operator", [p for p in EVERY if p.values[0].gives == "scores" and p.values[0].scaled])
def test_scores_are_linear_as_declared(operator):
    given = inputs(operator, operator.cases[1])
    along = {"q", "k", *operator.scaled_along}
    doubled = {name: 2 * a if name in along else a for name, a in given.items()}
    got, want = eager(operator, doubled), 2 * eager(operator, given)
    if operator.linear:
        agree(got, want, "same values", np.float64)  # powers of two round nothing
    else:
        assert np.abs(got - want).max() > 0.1 * np.abs(want).max()


@pytest.mark.parametrize("operator", EVERY)
def test_cases_reach_every_corner(operator):
    def distances(case):
        return case.offset - case.keys + 1, case.offset + case.queries - 1

    def reach(case):
        place, axis = (operator.own.index("by_distance"), 1) if "by_distance" in operator.own else (0, 0)
        return (operator.draw(case, np.random.default_rng(0))[place].shape[axis] - 1) // 2

    corners = {
        "one query": lambda c: c.queries == 1 < c.keys,
        "one key": lambda c: c.keys == 1 < c.queries,
        "one pair": lambda c: c.queries == c.keys == 1,
        "queries after a prefix": lambda c: c.queries < c.keys and c.offset == c.keys - c.queries,
        "more queries than keys": lambda c: c.queries > c.keys,
        "several blocks of the eager form": lambda c: c.queries > 256 < c.keys,
        "a table shorter than the input": lambda c: 0 < reach(c) < max(distances(c)),
        "a table longer than the input": lambda c: reach(c) > max(abs(d) for d in distances(c)),
        "all distances past the table's end": lambda c: min(distances(c)) > reach(c),
    }
    if operator.gives == "base" or operator.name == "SlidingWindowScores":  # it has no table of distances
        corners = {name: holds for name, holds in corners.items() if "table" not in name}
    missing = [name for name, holds in corners.items() if not any(holds(case) for case in operator.cases)]
    assert not missing
    # `keys` equals `queries` where the operator's own example does; no other two sizes may be confused
    for case in operator.cases:
        sizes = [s for s in (case.batch, case.heads, max(case.queries, case.keys), case.head_size) if s != 1]
        assert len(set(sizes)) == len(sizes), case


@pytest.mark.parametrize("operator", EVERY)
def test_oracle_stands_alone(operator, helpers_of):
    assert not helpers_of(operator.oracle), "an oracle may not call the code it checks"


def test_independence_check_sees_nested_functions(helpers_of):
    def direct(x):
        return skew(x, 3)

    def nested(x):
        return [(lambda y: skew(y, 3))(part) for part in x]

    def imported(x):
        from posexport.graph.ops import skew

        return skew.unskew(x)

    def closing_over(oracle):
        return lambda x: oracle(x)

    assert all(helpers_of(f) for f in (direct, nested, imported, closing_over(direct)))
    assert not helpers_of(lambda x: np.einsum("ij->ji", x))


def everything(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model without functions, and every tensor of its run."""
    plain = onnx.shape_inference.infer_shapes(onnx.inliner.inline_local_functions(model))
    typed = {v.name: v.type.tensor_type.elem_type for v in plain.graph.value_info}
    made = [name for node in plain.graph.node for name in node.output if name and name != "out"]
    assert set(made) <= set(typed), "a tensor's type is unknown, so that it could not be looked at"
    exposed = onnx.ModelProto()
    exposed.CopyFrom(plain)
    exposed.graph.output.extend(onnx.helper.make_tensor_value_info(name, typed[name], None) for name in made)
    return plain, {**given, **run(exposed, given, optimise=False)}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("operator", OF_POSITIONS)
def test_onnx_function_makes_no_tensor_per_pair_and_channel(operator, case):
    given = inputs(operator, case, np.float32)
    _, tensors = everything(one_node(operator, given), given)
    assert len(tensors) > 12
    T, S = case.queries, case.keys
    # vectors by distance are shared by the heads, or every head has its own
    tables = case.heads if given[operator.own[0]].ndim == 3 else 1
    # scores by distance column, and windows of the table; as much again for what fills up the last block of keys
    widest = 2 * case.heads * T * (T + S + 1) + 2 * tables * (T + S + 1) * case.head_size
    assert 4 * widest < tables * T * S * case.head_size
    assert {name: a.shape for name, a in tensors.items() if a.size > widest} == {}


FEW_KEYS = pytest.param(Case(batch=1, heads=2, queries=389, keys=16, head_size=48, table=400), id="few keys")


@pytest.mark.parametrize("case", [*LARGE, FEW_KEYS])
@pytest.mark.parametrize("operator", OF_POSITIONS)
def test_onnx_function_multiplies_little(operator, case):
    given = inputs(operator, case, np.float32)
    model, tensors = everything(one_node(operator, given), given)
    products = sum(
        tensors[node.output[0]].size * tensors[node.input[0]].shape[-1]
        for node in model.graph.node
        if node.op_type == "MatMul"
    )
    T, S, HD = case.queries, case.keys, case.heads * case.head_size
    # every query against T + S distances; every key against the T + min(T, S) that the queries reach from its block
    bound = T * (T + S + 1) * HD + ("k" in operator.takes) * (S + T) * (T + min(T, S) + 1) * HD
    if operator.gives == "values":  # and one product sums what stands far before, or far behind, every query
        bound += 2 * T * case.heads * (S + case.head_size)
    if not operator.takes:
        bound = T * S * case.heads * sum(given[name].shape[-1] for name in operator.inner)
    assert (0 < products <= bound) if bound else products == 0


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("operator", OF_POSITIONS)
def test_eager_makes_no_tensor_per_pair_and_channel(operator, case):
    given = [torch.from_numpy(a) for a in inputs(operator, case).values()]
    # PyTorch 2.11 warns without acc_events
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        operator(*given)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    output = 8 * case.heads * case.queries * (case.keys if operator.gives == "scores" else case.head_size)
    assert output <= largest < 8 * case.queries * case.keys * case.head_size


@pytest.mark.parametrize("operator", [p for p in EVERY if p.values[0].shifts])
def test_a_term_that_shifts_depends_on_the_distance_alone(operator):
    assert not operator.takes
    for case in operator.cases:
        given = inputs(operator, case)
        moved = {**given, "qpos": given["qpos"] + 1009, "kpos": given["kpos"] + 1009}
        assert np.array_equal(operator.oracle(*given.values()), operator.oracle(*moved.values()))


@pytest.mark.parametrize("operator", EVERY)
def test_shape_and_type_are_known_without_values(operator):
    tensors = [torch.from_numpy(a).to("meta") for a in inputs(operator, operator.cases[2], np.float16).values()]
    out = operator(*tensors)
    assert (out.device.type, out.dtype, tuple(out.shape)) == ("meta", torch.float16, operator.shape(*tensors))


@pytest.mark.parametrize("operator", EVERY)
def test_exported_program_takes_every_length(operator):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return operator.eager(*tensors)

    short, long = (
        [torch.from_numpy(a) for a in inputs(operator, Case(2, 3, queries, keys, head_size=4, table=6)).values()]
        for queries, keys in ((7, 19), (261, 277))
    )
    sizes = tuple(tuple(torch.export.Dim.AUTO for _ in tensor.shape) for tensor in short)
    program = torch.export.export(Module(), tuple(short), dynamic_shapes=(sizes,))
    agree(program.module()(*long).numpy(), operator(*long).numpy(), "operator", np.float64)


# torch's own exporter asks its own trees in the old way (2.13)
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_export_emits_one_node_each():
    case = Case(batch=2, heads=3, queries=7, keys=11, head_size=4, table=5)
    given = {o.name: [torch.from_numpy(a) for a in inputs(o, case, np.float32).values()] for o in OPERATORS.values()}

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            rest, out = list(tensors), []
            for name, own in given.items():
                out.append(OPERATORS[name](*rest[: len(own)]))
                rest = rest[len(own) :]
            return tuple(out)

    flat = [tensor for own in given.values() for tensor in own]
    program = torch.onnx.export(
        Model().eval(), tuple(flat), dynamo=True, opset_version=18, verbose=False, optimize=False
    )
    assert program is not None
    nodes = {node.op_type: node for node in program.model.graph if node.domain == DOMAIN}
    assert set(nodes) == set(OPERATORS)
    for name, own in given.items():
        assert tuple(nodes[name].outputs[0].shape) == tuple(OPERATORS[name](*own).shape)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 5), (5, 1), (3, 7)])
def test_skew_is_its_definition_and_is_undone(T, S):
    by_column = torch.randn(2, T, T + S, generator=torch.Generator().manual_seed(1))
    by_key = skew(by_column, S)
    for i in range(T):
        for j in range(S):
            assert torch.equal(by_key[:, i, j], by_column[:, i, T - 1 - i + j])
    again = unskew(by_key)
    assert torch.equal(skew(again, S), by_key)
    assert int((again != 0).sum()) == by_key.numel()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "registered twice"),
        ({"name": "Other", "cases": []}, "no cases"),
        ({"name": "Other"}, "has a function called"),
    ],
)
def test_registration_refuses(changes, message):
    good = next(iter(OPERATORS.values()))
    before = dict(OPERATORS)
    with pytest.raises(ValueError, match=message):
        register(dataclasses.replace(good, **changes))
    assert before == OPERATORS
