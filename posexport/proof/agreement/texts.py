"""The cost of a precision on a user's texts: the graph against the same graph in float32. Imports no torch.

Each text is a row of a call without padding, so that nothing but the precision differs. Texts beyond the model's limit
are cut. Random tokens replace texts where a graph's activations are measured without any.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from posexport.base.sizes import multiple
from posexport.base.spec import (
    ENCODER_SEQUENCE,
    SEQUENCE,
    Interface,
    LengthContract,
    PartSpec,
    Promises,
    Role,
    compared_outputs,
)
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.errors import PosexportError
from posexport.proof.agreement.cosine import LOGITS, Cosines, cosines, total
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Progress
from posexport.proof.subjects.runner import Make, RunError, Runner, in_calls
from posexport.run.arrays import read_texts
from posexport.run.bundle.manifest import TextAgreement
from posexport.run.texts import TOKENIZER, tokenizer_of

#: (batch, tokens) of the calls
CALLS = ((4, 13), (4, 48))
#: random values of these roles resemble real inputs; random values of sounds or pixels do not
_ROLES: frozenset[Role] = frozenset(
    ["tokens", "types", "mask", "flags", "cache", "state", "positions", "lengths", "adapters"]
)


def random_rows(graph: Interface, limits: LengthContract) -> list[Feeds]:
    """Feeds without padding, within the lengths that the graph accepts; none where it reads more than tokens."""
    roles = {spec.role for spec in graph.inputs}
    if "tokens" not in roles or not roles <= _ROLES:
        return []
    two = any(ENCODER_SEQUENCE in spec.axes for spec in graph.inputs)
    feeds = []
    for batch, rows in CALLS:
        length = multiple(max(rows, limits.min_length), limits.size_steps.get(SEQUENCE, 1))
        length = min(length, limits.max_length or length)
        point = GridPoint(batch=batch, length=length, encoder_length=length if two else None)
        feeds.append(draw(point, graph.inputs))
    return feeds


#: with static scales the outputs on texts have at least this mean cosine with float32's: right ones have 0.99,
#: and 0.62 to 0.93 was seen where all rows had one scale by mistake
LEAST_STATIC = 0.95


class SourcePart(Protocol):
    """One graph of a source with several."""

    @property
    def spec(self) -> PartSpec: ...


class Model(Interface, Protocol):
    """The parts of a source that texts need: its graphs, limits and tokenizer."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> LengthContract: ...
    @property
    def promises(self) -> Promises: ...
    @property
    def parts(self) -> Sequence[SourcePart]: ...
    @property
    def files(self) -> dict[str, Path]: ...


class TokenizedText(NamedTuple):
    """The token ids and segment ids of a text, [T] both."""

    ids: list[int]
    types: list[int]


def on_texts(
    source: Model,
    model: Path | bytes,
    float32: Path,
    texts: Path,
    *,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    progress: Progress | None = None,
    make: Make | None = None,
) -> TextAgreement:
    """Agreement of ``model`` with ``float32`` on the lines of ``texts``; of a source of parts both are directories.

    ``make`` opens the sessions of ``model``. Perplexity is computed for a decoder with logits: how likely each next
    token is.

    Raises:
        PosexportError: no texts, a source without a tokenizer, or one that takes more than tokens.
    """
    # one call a text, on both graphs
    tokenized = _tokenized(source, read_texts(texts))
    specs = [part.spec for part in source.parts]
    ours, reference = (
        Runner.of(source, subject, specs, provider=provider, threads=threads, make=how)
        for subject, how in ((model, make), (float32, None))
    )
    compared = [(at, spec) for at, spec in enumerate(compared_outputs(source)) if not spec.name.startswith("present.")]
    by_output: dict[str, list[Cosines]] = {spec.name: [] for _, spec in compared}
    loss: list[tuple[float, float, int]] = []
    # cosines of every output but caches, and the loss of the next token where logits allow it
    for number, text in enumerate(tokenized):
        if progress is not None:
            progress(number, len(tokenized), "comparing texts")
        feeds = _feeds(source, text)
        try:
            y, y32 = (in_calls(run, feeds, source, ()) for run in (ours, reference))
        except RunError as err:
            raise PosexportError(f"{texts}: text {number + 1} cannot be run: {err}; leave it out") from err
        for at, spec in compared:
            by_output[spec.name].append(cosines(y[at], y32[at], spec, None))
            if spec.name == LOGITS and source.promises.causal and SEQUENCE in spec.axes and len(text.ids) > 1:
                loss.append((surprise(y[at][0], text.ids), surprise(y32[at][0], text.ids), len(text.ids) - 1))
    lengths = [len(text.ids) for text in tokenized]
    return TextAgreement(
        texts=len(tokenized),
        sha256=hashlib.sha256(texts.read_bytes()).hexdigest(),
        fewest_tokens=min(lengths),
        most_tokens=max(lengths),
        outputs={name: summary for name, parts in by_output.items() if (summary := total(parts).agreement) is not None},
        perplexity_ratio=_ratio(loss),
    )


def calibration_feeds(source: Model, texts: Path) -> list[Feeds]:
    """The inputs for each line of ``texts``, one row each: ``--calibrate`` measures activations on them.

    Raises:
        PosexportError: no texts, a source of several graphs, without a tokenizer, or that takes more than tokens.
    """
    if source.parts:
        raise PosexportError(
            f"{source.name} is exported as {len(source.parts)} graphs, which texts alone do not run; leave --calibrate "
            "out: every row of int8 activations then has a scale of its own, and int4 has --quantizer hqq"
        )
    return [_feeds(source, text) for text in _tokenized(source, read_texts(texts), "--calibrate")]


def surprise(logits_TV: Array, ids: Sequence[int]) -> float:
    """The sum of -log p of every token but the first, by the logits of the one before, in nats."""
    wide = logits_TV[:-1].astype(np.float64)
    highest = wide.max(-1, keepdims=True)
    log_sum = highest[:, 0] + np.log(np.exp(wide - highest).sum(-1))
    return float((log_sum - wide[np.arange(len(wide)), np.asarray(ids[1:])]).sum())


def _ratio(loss: Sequence[tuple[float, float, int]]) -> float | None:
    """The ratio of perplexities, to float32, over all texts."""
    tokens = sum(count for _, _, count in loss)
    return float(np.exp(sum(ours - theirs for ours, theirs, _ in loss) / tokens)) if tokens else None


def _tokenized(source: Model, lines: Sequence[str], option: str = "--evaluate") -> list[TokenizedText]:
    """The tokens of each text, cut to the limit."""
    if TOKENIZER not in source.files:
        raise PosexportError(
            f"{source.name} has no {TOKENIZER} to read texts with; give one with --tokenizer, or leave {option} out"
        )
    roles = {spec.role for spec in source.inputs if spec.default is None}
    if strange := roles & {"values", "flags"}:
        raise PosexportError(
            f"{source.name} takes {' and '.join(sorted(strange))} beside tokens, which texts do not give; leave "
            f"{option} out"
        )
    tokenizer = tokenizer_of(source.files[TOKENIZER])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    limit = source.limits.max_length
    encoded = (tokenizer.encode(line) for line in lines)
    tokenized = [TokenizedText(list(e.ids)[:limit], list(e.type_ids)[:limit]) for e in encoded]
    tokenized = [text for text in tokenized if len(text.ids) >= source.limits.min_length]
    if not tokenized:
        raise PosexportError(f"no text has {source.limits.min_length} tokens or more; give longer ones")
    return tokenized


def _feeds(source: Model, text: TokenizedText) -> Feeds:
    """The text as every input of token ids reads it, one row, nothing padded, empty caches."""
    length = len(text.ids)
    far = length if any(ENCODER_SEQUENCE in spec.axes for spec in source.inputs) else None
    feeds = draw(GridPoint(batch=1, length=length, encoder_length=far), source.inputs)
    for spec in source.inputs:
        if spec.role in ("tokens", "types") and feeds[spec.name].shape == (1, length):
            feeds[spec.name] = np.asarray(
                [text.ids if spec.role == "tokens" else text.types], dtype=feeds[spec.name].dtype
            )
        elif spec.role == "flags":
            feeds[spec.name][:] = 0
    return feeds


def check_static(agreement: TextAgreement, path: Path) -> None:
    """PosexportError where static scales do not even fit texts, as other int8 graphs fit all inputs."""
    for name, output in agreement.outputs.items():
        if output.cosine < LEAST_STATIC:
            raise PosexportError(
                f"with static scales the mean cosine of {name} with float32 is {output.cosine:.3f} on {path}, needed "
                f"{LEAST_STATIC}; give --calibrate more texts, like those that the model will read, or leave it out: "
                "every row of activations then has a scale of its own"
            )
