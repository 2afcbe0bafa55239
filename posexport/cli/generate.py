"""posexport generate"""

from pathlib import Path
from typing import Any

import click

from posexport.cli import options
from posexport.cli.command import Command
from posexport.cli.progress import remark

_GROUPS = {
    "Prompts": ("prompts", "inputs", "decoder_prompts", "chat", "system"),
    "Stopping": ("max_new_tokens", "stop_strings"),
    "Sampling": ("do_sample", "temperature", "top_k", "top_p", "seed"),
    "Runtime": (*options.RUNTIME, "provider_options", "prefill_chunk_size", "no_recompute"),
}


@click.command("generate", cls=Command, groups=_GROUPS)
@options.bundle_argument
@click.option("--prompt", "prompts", multiple=True, help="A text to continue, or the encoder's input (repeatable).")
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Arrays for an encoder, by input name, instead of prompts: .npz, .safetensors or .json.",
)
@click.option(
    "--decoder-prompt",
    "decoder_prompts",
    multiple=True,
    help="The decoder's first tokens, as text, for an encoder-decoder (repeatable: one for each prompt).",
)
@click.option("--chat", is_flag=True, help="Put each prompt into the model's chat template as a user message.")
@click.option("--system", metavar="TEXT", help="A system message before each prompt, with --chat.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    default=64,
    show_default=True,
    help="Most tokens to generate for a prompt.",
)
@click.option("--do-sample", is_flag=True, help="Sample, also where none of the options below is given.")
@click.option("--temperature", type=float, help="Sample with logits divided by this; 0 is greedy.")
@click.option("--top-k", type=int, help="Sample among the K most likely tokens.")
@click.option("--top-p", type=float, help="Sample among the fewest tokens whose probabilities add up to this.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Random seed for sampling."
)
@click.option("--stop-strings", multiple=True, metavar="TEXT", help="Stop before this text (repeatable).")
@click.option("--stream", is_flag=True, help="Print text as it is generated.")
@click.option(
    "--prefill-chunk-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Chunked prefill, N tokens at a time: less memory.",
)
@click.option(
    "--no-recompute",
    is_flag=True,
    help="Reject prompts for which a longrope model would compute its cached keys again.",
)
@options.variant_option
@options.provider_option
@options.provider_options_option
@options.threads_option
@options.verbosity_options
@options.json_option
def command(
    directory: Path,
    prompts: tuple[str, ...],
    inputs: Path | None,
    decoder_prompts: tuple[str, ...],
    chat: bool,
    system: str | None,
    do_sample: bool,
    stream: bool,
    no_recompute: bool,
    precision: str | None,
    provider: str,
    provider_options: dict[str, str],
    threads: int,
    as_json: bool,
    **choices: Any,
) -> None:
    """Generate text with a decoder or encoder-decoder.

    DIR is a bundle. Decodes greedily, or samples if --do-sample, --temperature, --top-k or --top-p is given. Stops at
    the end tokens of the bundle's configuration, at --stop-strings, after --max-new-tokens or at the model's length
    limit. Prompts of different lengths run as one batch, and each gets the tokens it gets alone. Prompt and generation
    speed are printed to stderr separately.

    \b
    Example:
        posexport generate smollm --prompt "Once upon a time" --max-new-tokens 100 --stream
        posexport generate qwen --chat --prompt "Who wrote Faust?"
        posexport generate t5 --prompt "translate English to German: A cat sits."
        posexport generate smollm --prompt "A cat" --prompt "My dog likes" --temperature 0.8 --top-p 0.9 --seed 7
    """
    from posexport.errors import PosexportError
    from posexport.runtime.completion import continue_texts
    from posexport.runtime.generation_config import GenerationConfig

    if stream and as_json:
        raise PosexportError("--stream prints text as it comes and --json one document at the end; give one of them")
    config = GenerationConfig(do_sample=do_sample or None, recompute=not no_recompute, **choices)
    done = continue_texts(
        directory,
        prompts,
        inputs=inputs,
        chat=chat,
        system=system,
        precision=precision,
        provider=provider,
        provider_options=provider_options,
        threads=threads,
        tell=(lambda piece: click.echo(piece, nl=False)) if stream else None,
        config=config,
        decoder_prompts=decoder_prompts,
    )
    if as_json:
        click.echo(done.to_json())
    elif not stream:
        click.echo(done.to_text())
    for line in () if as_json else done.remarks():
        remark(line)
