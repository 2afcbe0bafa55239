"""posexport generate"""

from pathlib import Path

import click

from posexport.cli import options


@click.command("generate")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--prompt", "prompts", multiple=True, help="A text to continue, or for an encoder to read (repeatable).")
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Arrays for an encoder, by input name, in place of prompts: .npz, .safetensors, .json.",
)
@click.option(
    "--decoder-prompt",
    "decoder_prompts",
    multiple=True,
    help="What the answer begins with, where an encoder reads the prompt (repeatable: one for each prompt).",
)
@click.option("--chat", is_flag=True, help="Put each prompt into the model's chat template, as a user's message.")
@click.option("--system", metavar="TEXT", help="A system message before each prompt, with --chat.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Stop after so many.")
@click.option("--temperature", type=float, help="Sample, logits divided by this; 0 takes the best token each time.")
@click.option("--top-k", type=int, help="Sample among so many of the likeliest tokens.")
@click.option("--top-p", type=float, help="Sample among the fewest tokens that together have this probability.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of sampling.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text (repeatable).")
@click.option("--stream", is_flag=True, help="Print text as it comes.")
@click.option("--chunk", type=click.IntRange(min=1), metavar="N", help="Read prompts N tokens at a time: less memory.")
@click.option("--no-recompute", is_flag=True, help="Refuse what a longrope model would have to read a second time.")
@options.provider_option
@options.threads_option
@options.json_option
def command(
    directory: Path,
    prompts: tuple[str, ...],
    inputs: Path | None,
    decoder_prompts: tuple[str, ...],
    chat: bool,
    system: str | None,
    max_new_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    stop: tuple[str, ...],
    stream: bool,
    chunk: int | None,
    no_recompute: bool,
    provider: str,
    threads: int,
    as_json: bool,
) -> None:
    """Continue prompts with the decoder in DIR and its cache, or answer them with its encoder and decoder.

    Takes the best token each time, or samples where --temperature, --top-k or --top-p is given. Stops at the end tokens
    of the bundle's configuration, at --stop, after --max-new-tokens or where the model takes no more. Prompts of any
    lengths are computed together, and each gets what it gets alone. How fast it was is told on stderr.

    \b
    Example:
        posexport generate smollm --prompt "Once upon a time" --max-new-tokens 100 --stream
        posexport generate qwen --chat --prompt "Who wrote Faust?"
        posexport generate t5 --prompt "translate English to German: A cat sits."
        posexport generate smollm --prompt "A cat" --prompt "My dog likes" --temperature 0.8 --top-p 0.9 --seed 7
    """
    from posexport.errors import PosexportError
    from posexport.runtime.completion import continue_texts

    if stream and as_json:
        raise PosexportError("--stream prints text as it comes and --json one document at the end; give one of them")
    done = continue_texts(
        directory,
        prompts,
        inputs=inputs,
        chat=chat,
        system=system,
        provider=provider,
        threads=threads,
        tell=(lambda piece: click.echo(piece, nl=False)) if stream else None,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        chunk=chunk,
        recompute=not no_recompute,
        decoder_prompts=list(decoder_prompts) or None,
    )
    if as_json:
        click.echo(done.to_json())
    elif not stream:
        click.echo(done.to_text())
    for line in done.remarks():
        click.echo(line, err=True)
