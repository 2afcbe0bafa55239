"""The options of ``posexport run``, and how a command opens a bundle."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Any, Literal

import msgspec

from posexport.base.options.option import OUTPUT, Option
from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.providers import DEFAULT_PROVIDER

#: headings in ``--help``
INPUTS, ANSWER, VECTORS = "Inputs", "Answer of the task", "Tensors, vectors and scores"
GROUPS = (INPUTS, ANSWER, VECTORS, OUTPUT)


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a bundle is opened, as in `posexport.base.options.commands.OpenOptions`."""

    precision: PrecisionName | None = None
    provider: str = DEFAULT_PROVIDER
    threads: int = 0
    provider_options: Mapping[str, Any] | None = None

    @property
    def opening(self) -> dict[str, Any]:
        """The arguments of `posexport.load` that differ from its defaults."""
        values = ((name, getattr(self, name)) for name in Opening.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class RunOptions(Opening, frozen=True, kw_only=True):
    """The inputs of one run and the outputs that it prints."""

    texts: Annotated[
        Sequence[str],
        Option(group=INPUTS, flag="text", help="An input text (repeatable); needs a bundle with a tokenizer."),
    ] = ()
    texts_file: Annotated[
        PathLike[str] | None,
        Option(group=INPUTS, flag="texts", metavar="FILE", help="Input texts, one a line of a file; - for stdin."),
    ] = None
    images: Annotated[Sequence[PathLike[str]], Option(group=INPUTS, flag="image", help="A picture (repeatable).")] = ()
    audio: Annotated[Sequence[PathLike[str]], Option(group=INPUTS, help="A sound: WAV or FLAC (repeatable).")] = ()
    inputs: Annotated[
        PathLike[str] | None,
        Option(
            group=INPUTS,
            help='Input arrays by name: .npz, .safetensors or .json, e.g. {"input_ids": [[5, 2, 7]]}.',
        ),
    ] = None
    truncate: Annotated[
        bool,
        Option(group=INPUTS, help="Cut texts at the model's length limit; otherwise longer ones are an error."),
    ] = False
    context: Annotated[
        str | None,
        Option(
            group=ANSWER,
            metavar="TEXT",
            help="What the texts are questions about, or the second text of pairs (classifiers).",
        ),
    ] = None
    task: Annotated[
        str | None,
        Option(
            group=ANSWER,
            metavar="NAME",
            help="A task that the bundle also has, by transformers' name: zero-shot-classification.",
        ),
    ] = None
    options: Annotated[
        Mapping[str, Any],
        Option(
            group=ANSWER,
            flag="option",
            metavar="NAME=VALUE",
            json=True,
            help="Of the task, by transformers' name, e.g. aggregation_strategy=simple (repeatable); values may be "
            "JSON.",
        ),
    ] = {}
    top_k: Annotated[
        int | None,
        Option(group=ANSWER, metavar="N", help="Only the N best texts of --query, or labels, tokens, answers."),
    ] = None
    tensors: Annotated[bool, Option(group=VECTORS, help="Print the outputs, not the answer of the bundle's task.")] = (
        False
    )
    only: Annotated[
        Sequence[str], Option(group=VECTORS, metavar="NAME", help="Only this output as a tensor (repeatable).")
    ] = ()
    query: Annotated[
        str | None,
        Option(
            group=VECTORS,
            metavar="TEXT",
            help="Rank the texts of --text for this query, the best first (rerankers).",
        ),
    ] = None
    activation_fn: Annotated[
        str | None,
        Option(group=VECTORS, metavar="NAME", help="With --query: Sigmoid, Identity, ... in place of the model's."),
    ] = None
    prompt_name: Annotated[
        str | None,
        Option(group=VECTORS, metavar="NAME", help="Put this prompt of the bundle's before texts, or the query."),
    ] = None
    prefix: Annotated[
        str | None,
        Option(
            group=VECTORS,
            metavar="TEXT",
            help='Put this before texts, or the query, in place of a prompt; "" for none.',
        ),
    ] = None
    truncate_dim: Annotated[
        int | None, Option(group=VECTORS, metavar="N", help="Keep the first N elements of a vector (embedders).")
    ] = None
    normalize_embeddings: Annotated[bool, Option(group=VECTORS, help="Divide vectors by their length (embedders).")] = (
        False
    )
    embedding_precision: Annotated[
        Literal["float32", "int8", "uint8", "binary", "ubinary"],
        Option(
            group=VECTORS,
            show_default=False,
            help="Quantize vectors as sentence-transformers does, by the range of these texts (embedders).",
        ),
    ] = "float32"
    output_value: Annotated[
        Literal["sentence_embedding", "token_embeddings", "dense", "sparse", "colbert", "all"] | None,
        Option(
            group=VECTORS,
            help="What encode gives of texts: vectors, tokens' states; of BGE-M3 weights and vectors of tokens, or "
            "all.",
        ),
    ] = None
    adapters: Annotated[
        Sequence[str],
        Option(
            group=VECTORS,
            flag="adapter",
            metavar="NAME",
            help="The LoRA adapter of all inputs, or of each in turn (repeatable); none: the base model.",
        ),
    ] = ()
    output: PathLike[str] | None = None
    force: Annotated[bool, Option(group=OUTPUT, help="Replace an existing file.")] = False

    @property
    def adapter(self) -> str | list[str] | None:
        """The argument of `Session.run_texts` and `Session.encode`: a name, or one for each input."""
        return None if not self.adapters else self.adapters[0] if len(self.adapters) == 1 else list(self.adapters)

    @property
    def prompt(self) -> dict[str, Any]:
        """The prompt before texts or a query, as arguments of `Session.encode` and `Session.rank`."""
        return {"prompt_name": self.prompt_name, "prompt": self.prefix}

    @property
    def vectors(self) -> dict[str, Any]:
        """The other arguments of `Session.encode`."""
        values = {
            "truncate_dim": self.truncate_dim,
            "normalize_embeddings": self.normalize_embeddings,
            "precision": self.embedding_precision,
        }
        return values if self.output_value is None else values | {"output_value": self.output_value}

    @property
    def about_vectors(self) -> bool:
        """Whether an argument of `Session.encode` is set, with a query one that `Session.rank` does not have."""
        prompts = () if self.query is not None else ("prompt_name", "prefix")
        return self.has("truncate_dim", "normalize_embeddings", "embedding_precision", "output_value", *prompts)

    @property
    def about_tensors(self) -> bool:
        """Whether an option asks for tensors, vectors or a ranking."""
        other = ("tensors", "inputs", "query", "only", "output", "prompt_name", "prefix", "activation_fn")
        return self.about_vectors or bool(self.adapters) or self.has(*other)

    def has(self, *names: str) -> bool:
        """Whether one of the options is set."""
        values = [getattr(self, name) for name in names]
        return any(value is not None and value is not False and value not in ((), [], "float32") for value in values)
