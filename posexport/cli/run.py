"""posexport run"""

from pathlib import Path
from typing import Any

import click

from posexport.base.options.option import OUTPUT, RUNTIME
from posexport.base.options.run import GROUPS, RunOptions
from posexport.cli import of_record, options
from posexport.cli.command import Command
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


@click.command(
    "run",
    cls=Command,
    typed=_TYPED,
    groups=of_record.groups(RunOptions, GROUPS, {OUTPUT: ("output",)})
    | {RUNTIME: ("precision", *options.RUNTIME, "provider_options")},
)
@options.bundle_argument
@of_record.all_of(RunOptions)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
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
        done = answer(directory, RunOptions(**choices), progress)
    click.echo(done.to_json() if as_json else done.to_text())
