"""posexport run"""

from pathlib import Path
from typing import Any

import click

from posexport.cli import options
from posexport.cli.command import Command
from posexport.cli.of_record import json_pairs
from posexport.cli.terminal import bar

#: what to type for words of the library's errors
_TYPED = {
    **dict.fromkeys(("truncation=True", "truncate=True", 'tokenizer_kwargs={"truncation": True}'), "--truncate"),
    **{f"{name}=": f"--option {name}=" for name in ("stride", "return_timestamps", "chunk_length_s", "src_lang")},
    "src_lang and tgt_lang": "--option src_lang=CODE --option tgt_lang=CODE",
    "activation_fn=": "--activation-fn ",
    "give ids to run or generate": "give ids by --inputs",
    "use run_texts": "leave out the options for vectors",
}


@click.command("run", cls=Command, typed=_TYPED)
@options.bundle_argument
@click.option("--text", "texts", multiple=True, help="An input text (repeatable); needs a bundle with a tokenizer.")
@click.option(
    "--texts",
    "texts_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Input texts, one a line of a file; - for stdin.",
)
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="A picture (repeatable).")
@click.option("--audio", multiple=True, type=click.Path(path_type=Path), help="A sound: WAV or FLAC (repeatable).")
@click.option(
    "--context", metavar="TEXT", help="What the texts are questions about, or the second text of pairs (classifiers)."
)
@click.option(
    "--task", metavar="NAME", help="A task that the bundle also has, by transformers' name: zero-shot-classification."
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, pairs: json_pairs("--option", pairs),
    help="Of the task, by transformers' name, e.g. aggregation_strategy=simple (repeatable); values may be JSON.",
)
@click.option("--tensors", "as_tensors", is_flag=True, help="Print the outputs, not the answer of the bundle's task.")
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help='Input arrays by name: .npz, .safetensors or .json, e.g. {"input_ids": [[5, 2, 7]]}.',
)
@click.option("--query", metavar="TEXT", help="Rank the texts of --text for this query, the best first (rerankers).")
@click.option("--only", multiple=True, metavar="NAME", help="Only this output as a tensor (repeatable).")
@click.option(
    "--truncate", is_flag=True, help="Cut texts at the model's length limit; otherwise longer ones are an error."
)
@click.option("--prompt-name", metavar="NAME", help="Put this prompt of the bundle's before texts, or the query.")
@click.option(
    "--prefix", metavar="TEXT", help='Put this before texts, or the query, in place of a prompt; "" for none.'
)
@click.option("--truncate-dim", type=int, metavar="N", help="Keep the first N elements of a vector (embedders).")
@click.option("--normalize-embeddings", is_flag=True, help="Divide vectors by their length (embedders).")
@click.option(
    "--embedding-precision",
    type=click.Choice(["float32", "int8", "uint8", "binary", "ubinary"]),
    default="float32",
    help="Quantize vectors as sentence-transformers does, by the range of these texts (embedders).",
)
@click.option(
    "--output-value",
    type=click.Choice(["sentence_embedding", "token_embeddings", "dense", "sparse", "colbert", "all"]),
    help="What encode gives of texts: vectors, tokens' states; of BGE-M3 weights and vectors of tokens, or all.",
)
@click.option("--top-k", type=int, metavar="N", help="Only the N best texts of --query, or labels, tokens, answers.")
@click.option("--activation-fn", metavar="NAME", help="With --query: Sigmoid, Identity, ... in place of the model's.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.variant_option
@options.provider_option
@options.provider_options_option
@options.threads_option
@options.json_option
def command(directory: Path, as_json: bool, **choices: Any) -> None:
    """Run a bundle on texts, pictures, sounds or arrays.

    DIR is a bundle. Prints the answer of its task, as posexport.pipeline returns it: labels, entities, text. With
    --tensors, or for a bundle without a task, the shape and first values of every output, and the similarities of two
    or more sentence embeddings. Embeddings are those of Session.encode: texts are cut at max_seq_length, and the
    default prompt is added. With --query: the texts in the order of Session.rank.

    \b
    Example:
        posexport run minilm --text "A cat sits." --text "A kitten rests."
        posexport run reranker --query "What do cats eat?" --text "Mice." --text "The moon is far."
        posexport run sentiment --text "A joy from start to end." --top-k 3
        posexport run ner --text "Wolfgang lives in Berlin." --option aggregation_strategy=simple
        posexport run llava --image cat.png --text "What does the cat hold?"
        posexport run shaw --inputs ids.json --only last_hidden_state -o states.npz
    """
    from posexport.run.pipelines.answer import answer

    with bar("Running") as progress:
        done = answer(directory, **choices, progress=progress)
    click.echo(done.to_json() if as_json else done.to_text())
