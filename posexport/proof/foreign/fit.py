"""A graph that another tool made as a subject: its inputs from the source's, and the outputs that are compared.

The graph does not follow posexport's conventions. Its ``position_ids`` are counted from the attention mask, as
transformers' ``generate`` counts them; inputs that only the graph has are derived; outputs that it lacks are left out
of the source too.

optimum writes an encoder, which returns its states, and decoders that take these states. posexport's decoder takes the
keys and values of the states instead, so that the definition is divided in another way here.

Shape letters: B batch, T new tokens of the decoder, S the encoder's states, C model size.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import (
    CARRIED,
    ENCODER_SEQUENCE,
    ENCODER_STATES,
    PAST,
    PRESENT,
    SEQUENCE,
    TOTAL,
    Axis,
    InputSpec,
    OutputSpec,
    State,
    neutral,
)
from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.encoder_decoder_parts import DECODER_FILE, ENCODER_FILE
from posexport.proof.foreign.signature import (
    DERIVED,
    POSITIONS,
    Call,
    Declared,
    Signature,
    positions,
    shared,
    token_input,
    unread,
)
from posexport.proof.grid.inputs import Feeds
from posexport.sources.source import Source


def half(source: Source, graph: Signature) -> Source:
    """``source``, or the part of it with the inputs of ``graph``: encoder, decoder of states, or of caches only."""
    if not source.parts or "decoder_input_ids" in graph.inputs:
        return source
    if not isinstance(source.module, EncoderDecoderModel):
        raise PosexportError(f"{source.name} has halves that are not known; verify a graph of the whole")
    if ENCODER_STATES in graph.inputs:
        return _decoder(source, source.module)
    if any(name.startswith("past_key_values") for name in graph.inputs):
        # keys and values of the states are inputs, and have no positions
        later = source.graphs[DECODER_FILE]
        return msgspec.structs.replace(later, limits=msgspec.structs.replace(later.limits, limited_axes=[SEQUENCE]))
    return _encoder(source, source.module)


def _encoder(source: Source, whole: EncoderDecoderModel) -> Source:
    """Its inputs to its states. Their sequence is the only one."""
    encoder = whole.wiring.encoder_alone(ENCODER_FILE)
    inputs = [msgspec.structs.replace(spec, axes=_alone(spec.axes)) for spec in encoder.spec.inputs]
    varies = any(SEQUENCE in spec.axes for spec in inputs)
    positional = bool(whole.encodings[0].hooks) if varies else None
    old = source.limits
    return msgspec.structs.replace(
        source,
        module=encoder.module,
        inputs=inputs,
        outputs=[msgspec.structs.replace(spec, axes=_alone(spec.axes)) for spec in encoder.spec.outputs],
        limits=msgspec.structs.replace(
            old,
            kv_cache=False,
            length_dependent=False,
            max_length=old.max_length if ENCODER_SEQUENCE in old.limited_axes else None,
            limited_axes=[SEQUENCE],
        ),
        # where the inputs have one size, there is nothing to permute
        encoding=source.encoding if varies else None,
        promises=msgspec.structs.replace(source.promises, causal=False, positional=positional),
        parts=[],
    )


def _decoder(source: Source, whole: EncoderDecoderModel) -> Source:
    """New tokens and the encoder's states to logits, the cache, and keys and values of the states."""
    wiring = whole.wiring
    decoder = wiring.first(DECODER_FILE)
    return msgspec.structs.replace(
        source,
        module=decoder.module,
        inputs=[*wiring.tokens, *wiring.past, wiring.states_input],
        outputs=decoder.spec.outputs,
        # the states have no positions: there may be any number of them
        limits=msgspec.structs.replace(source.limits, limited_axes=[SEQUENCE]),
        parts=[],
    )


def _alone(axes: Sequence[Axis]) -> list[Axis]:
    return [SEQUENCE if axis == ENCODER_SEQUENCE else axis for axis in axes]


#: roles of inputs that have a value which means that nothing was said
_NEUTRAL = ("mask", "types", "flags", "positions", "blocks", "lengths")


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """How a graph is compared with ``source``, which has the graph's inputs and outputs only.

    ``declared``: the graph's inputs. ``outputs``: those that are compared, in the source's order. ``crossed``:
    inputs that take keys and values of an encoder's states, to the outputs that give them in a call without a past.
    ``remarks``: sentences for the user.
    """

    source: Source
    declared: Mapping[str, Declared]
    outputs: Sequence[str]
    crossed: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def feeds(self, feeds: Feeds) -> Feeds:
        """What the graph takes for a call of the source: positions counted, and what it alone declares."""
        call = Call.of(feeds, self.source)
        graph_feeds = {}
        for name, port in self.declared.items():
            if name == POSITIONS:
                graph_feeds[name] = positions(call, feeds.get(name), port)
            elif name in feeds:
                graph_feeds[name] = feeds[name]
            elif name in self.crossed:
                graph_feeds[name] = unread(port, feeds[ENCODER_STATES])
            else:
                graph_feeds[name] = DERIVED[name](call)
        return graph_feeds


def fit(source: Source, graph: Signature, name: str) -> Foreign:
    """How ``graph`` is compared with ``source``, or with the half of it that the graph is.

    Raises:
        PosexportError: the graph takes what cannot be derived, or lacks what the source cannot do without; ``name`` is
            what the graph is called there.
    """
    source = half(source, graph)
    # optional inputs are fed only if the source knows them
    known = {spec.name for spec in source.inputs}
    graph = replace(graph, inputs={**graph.inputs, **{n: one for n, one in graph.optional.items() if n in known}})
    main = source.outputs[0].name
    if main not in graph.outputs:
        raise PosexportError(
            f"{name} gives {_listed(list(graph.outputs))} and not {main}, which {source.name} gives for the task "
            f"{source.task}; name that output {main}, or choose another --task"
        )
    cached = _cached(source, graph, name)
    crossed = _crossed(graph)
    _check_inputs(source, graph, name, list(crossed))
    taken = [spec for spec in source.inputs if spec.name in graph.inputs]
    left_out = [spec for spec in source.inputs if spec not in taken]
    # positions that all rows share are fed by place, and cannot be chosen
    taken = [spec for spec in taken if not (spec.name == POSITIONS and shared(graph.inputs[spec.name]))]
    # where a later call takes keys and values of states, it does not give them
    outputs = [s for s in source.outputs if s.name in graph.outputs and s.name not in crossed.values()]
    remarks = [f"not fed, {name} does not take it: {spec.name}" for spec in left_out if spec.role not in CARRIED]
    missing = [spec.name for spec in source.outputs if spec.name not in graph.outputs]
    missing = [one for one in missing if cached or not one.startswith("present.")]
    remarks += [f"not compared, {name} does not give it: {_listed(missing)}"] if missing else []
    extra = [one for one in graph.outputs if one not in {spec.name for spec in source.outputs}]
    remarks += [f"not compared, {source.name} does not give it: {_listed(extra)}"] if extra else []
    remarks += _fixed(taken, graph, name)
    paddings = list(source.limits.paddings)
    if reason := _own_numbers(source, graph):
        paddings = [padding for padding in paddings if padding not in ("left", "ragged")]
        if any(spec.role == "mask" and spec.axes[-1] in (SEQUENCE, TOTAL) for spec in taken):
            paddings += [] if "ragged-right" in paddings else ["ragged-right"]
            remarks.append(f"padding on the left is not tried: {reason}")
    whole = (taken, outputs) == (source.inputs, source.outputs)
    adapted = msgspec.structs.replace(
        source,
        module=source.module if whole else Neutral(source, taken, outputs).eval(),
        inputs=taken,
        outputs=outputs,
        limits=msgspec.structs.replace(source.limits, kv_cache=cached, paddings=paddings),
        parts=[],
    )
    names = [spec.name for spec in outputs]
    return Foreign(source=adapted, declared=graph.inputs, outputs=names, crossed=crossed, remarks=remarks)


class Neutral(nn.Module):
    """A source's module with ``taken`` as its only inputs and ``outputs`` as its only outputs.

    All else is fed as if nobody had said anything: nothing is masked, types are 0, the cache is empty.
    """

    def __init__(self, source: Source, taken: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> None:
        super().__init__()
        self.whole = source.module
        self._taken = list(taken)
        self._left_out = [spec for spec in source.inputs if spec not in self._taken]
        places = {spec.name: place for place, spec in enumerate(source.outputs)}
        self._places = [places[spec.name] for spec in outputs]

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs; inputs are passed by name."""
        dtype = next((p.dtype for p in self.whole.parameters() if p.is_floating_point()), torch.float32)
        sizes: dict[Axis, int] = {PAST: 0}
        for spec in self._taken:
            sizes |= zip(spec.axes, inputs[spec.name].shape, strict=True)
        sizes.setdefault(TOTAL, sizes[PAST] + sizes.get(SEQUENCE, 0))
        outputs = self.whole(**inputs, **{spec.name: _neutral(spec, sizes, dtype) for spec in self._left_out})
        return tuple(outputs[place] for place in self._places)


def _neutral(spec: InputSpec, sizes: Mapping[Axis, int], dtype: torch.dtype) -> Tensor:
    shape = [axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes]
    value = neutral(spec, sizes.get(SEQUENCE, 0))
    return torch.full(shape, value, dtype=dtype if spec.role in ("values", *CARRIED) else torch.int64)


def _cached(source: Source, graph: Signature, name: str) -> bool:
    """Whether the graph takes the source's cache, and gives it back."""
    past = [spec.name for spec in source.inputs if spec.role in CARRIED]
    missing = [tensor for tensor in past if tensor not in graph.inputs]
    if len(missing) == len(past):
        return False
    states = [spec.state.output for spec in source.inputs if isinstance(spec.state, State)]
    present = [spec.name for spec in source.outputs if set(PRESENT) & set(spec.axes)] + states
    if missing:
        raise PosexportError(f"{name} takes a part of the cache only: it lacks {missing[0]}, which {source.name} has")
    if lost := [tensor for tensor in present if tensor not in graph.outputs]:
        raise PosexportError(
            f"{name} takes a cache and does not give {lost[0]}: what becomes of the cache is not known; call its "
            "outputs present.0.key, present.0.value, ..., as optimum does"
        )
    return True


def _crossed(graph: Signature) -> dict[str, str]:
    """Inputs for keys and values of an encoder's states, where it takes the states too, to the outputs of these."""
    crossed = {}
    for name in graph.inputs if ENCODER_STATES in graph.inputs else ():
        output = re.sub(r"^past_key_values(\.\d+\.encoder\.)", r"present\1", name)
        if output != name and output in graph.outputs:
            crossed[name] = output
    return crossed


def _check_inputs(source: Source, graph: Signature, name: str, derived: Sequence[str]) -> None:
    """Every input can be fed, and fits; nothing that the source needs is missing."""
    # every input of the graph: its type is known, the source has it or it can be derived, and the sizes agree
    known = {spec.name: spec for spec in source.inputs}
    derivable = [*derived, *([POSITIONS, *DERIVED] if token_input(source.inputs) else [])]
    for port in graph.inputs.values():
        spec = known.get(port.name)
        if port.element is None:
            raise PosexportError(f"{name} takes {port.name} in a type that NumPy does not have; export it in float32")
        if spec is None and port.name not in derivable:
            hint = "export it without a cache" if port.name.startswith("past_") else "export it without that input"
            raise PosexportError(
                f"{name} takes {port}, which {source.name} does not have for the task {source.task} and which cannot "
                f"be derived; {hint}, or choose another --task"
            )
        if spec is None or port.shape is None or (port.name == POSITIONS and shared(port)):
            continue
        sizes = list(zip(spec.axes, port.shape, strict=False))
        if len(port.shape) != len(spec.axes) or any(
            isinstance(axis, int) and isinstance(size, int) and axis != size for axis, size in sizes
        ):
            expected = f"[{', '.join(map(str, spec.axes))}]"
            raise PosexportError(
                f"{name} takes {port}; that of {source.name} is {expected}: they are not the same model"
            )
    # every input of the source that matters is an input of the graph
    for spec in source.inputs:
        if spec.name not in graph.inputs and spec.role not in (*_NEUTRAL, *CARRIED):
            raise PosexportError(
                f"{name} does not take {spec.name}, which {source.name} needs: it takes "
                f"{_listed(list(graph.inputs))}; name that input {spec.name} when you export it"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fixed(taken: Sequence[InputSpec], graph: Signature, name: str) -> list[str]:
    """A remark for every axis that varies in the source and not in the graph."""
    remarks: dict[str, str] = {}
    for spec in taken:
        port = graph.inputs[spec.name]
        if port.shape is None:
            continue
        for axis, size in zip(spec.axes, port.shape, strict=True):
            if isinstance(axis, str) and isinstance(size, int):
                remarks.setdefault(axis, f"{name} takes {axis} {size} only, as its {spec.name} says")
    return list(remarks.values())


def _own_numbers(source: Source, graph: Signature) -> str | None:
    """Why positions of left-padded rows are not those that transformers' generate counts; None where they are."""
    port = graph.inputs.get(POSITIONS)
    if port is not None:
        return f"{POSITIONS} has one row for all" if shared(port) else None
    if any(spec.role == "positions" for spec in source.inputs):
        return f"it takes no {POSITIONS}, so that it numbers tokens in its own way (transformers: by place)"
    return None
