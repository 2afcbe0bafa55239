"""posexport tokenizer"""

import dataclasses
import json
from pathlib import Path

import click

from posexport.cli import options
from posexport.cli.command import Command, Group
from posexport.cli.terminal import remark


@click.group("tokenizer", cls=Group)
def command() -> None:
    """Train a byte-pair tokenizer, or encode texts with one.

    \b
    Example:
        posexport tokenizer train corpus.txt -o tokenizer.json --vocab-size 1000
        posexport tokenizer encode tokenizer.json --text "the lowest"
        posexport convert encoder-alibi --set vocab=1000 --tokenizer tokenizer.json -o bundle
    """


@command.command("train", cls=Command)
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The tokenizer.json to write.")
@options.number_option("--vocab-size", "Most tokens of the vocabulary.", required=True)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.verbosity_options
@options.json_option
def train_command(corpus: Path, output: Path, vocab_size: int, force: bool, as_json: bool) -> None:
    """Train a byte-pair encoding (BPE) on a UTF-8 text file.

    Pairs of tokens within a word are merged, the most frequent first, until the vocabulary has --vocab-size tokens. The
    end of a word is marked by </w>. The same corpus gives the same file.

    \b
    Example:
        posexport tokenizer train corpus.txt -o tokenizer.json --vocab-size 1000
    """
    from posexport.base.system.files import check_free, write_whole
    from posexport.run.tokenizer.byte_pair import train

    check_free(output, force=force)
    trained = train(corpus, vocab_size)
    write_whole(output, trained.data, force=force)
    if trained.size < vocab_size:
        remark(f"every word of the corpus is one token: {trained.size} tokens, not {vocab_size}")
    if as_json:
        click.echo(json.dumps({"tokenizer": str(output), "size": trained.size, "merges": trained.merges}))
    else:
        click.echo(f"{output}: {trained.size} tokens, {len(trained.merges)} merges")


@command.command("encode", cls=Command)
@click.argument("tokenizer", type=click.Path(path_type=Path))
@click.option("--text", "texts", multiple=True, required=True, help="A text to encode (repeatable).")
@options.json_option
def encode_command(tokenizer: Path, texts: tuple[str, ...], as_json: bool) -> None:
    """Print the tokens of texts and their ids.

    TOKENIZER is any tokenizer.json.

    \b
    Example:
        posexport tokenizer encode tokenizer.json --text "the lowest"
    """
    from posexport.run.tokenizer.byte_pair import encode

    rows = encode(tokenizer, texts)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    for row in rows:
        click.echo(" ".join(f"{token}:{number}" for token, number in zip(row.tokens, row.ids, strict=True)))
