"""posexport generate"""

from pathlib import Path
from typing import Any

import click

from posexport.base.options.prompts import PROMPTS, PromptOptions
from posexport.base.options.run import Opening
from posexport.cli import of_record, options
from posexport.cli.command import Command
from posexport.cli.terminal import remark
from posexport.cli.typed import typed_options
from posexport.run.generate import config as generation_config
from posexport.run.generate.config import GenerationConfig

_GROUPS = of_record.groups(PromptOptions, (PROMPTS,), {}) | of_record.groups(
    GenerationConfig,
    generation_config.GROUPS,
    {
        generation_config.SAMPLING: ("greedy",),
        generation_config.RUNTIME: (*options.RUNTIME, "provider_options"),
    },
)


_TYPED = {
    **typed_options(GenerationConfig),
    "do_sample=False": "--greedy",
    "decoder_prompts": "--decoder-prompt",
    "chat_template_kwargs": "--chat-option",
    "give ids to run or generate": "give ids by --inputs",
    "give arrays by name": "give arrays by --inputs",
}


@click.command("generate", cls=Command, groups=_GROUPS, typed=_TYPED)
@options.bundle_argument
@of_record.all_of(PromptOptions)
@click.option(
    "--greedy", is_flag=True, help="The most likely token each time: no sampling and no beams, whatever the model says."
)
@of_record.all_of(GenerationConfig)
@click.option("--stream", is_flag=True, help="Print text as it is generated.")
@options.variant_option
@options.provider_option
@options.provider_options_option
@options.threads_option
@options.verbosity_options
@options.json_option
def command(
    directory: Path,
    greedy: bool,
    stream: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Generate text with a decoder or encoder-decoder.

    DIR is a bundle. Options have transformers' names. Defaults come from the bundle's generation_config.json,
    else transformers': greedy decoding. Any option of sampling turns sampling on. Stops at the end tokens of the
    bundle's configuration, at --stop-strings, after --max-new-tokens or at the model's length limit. Prompts of
    different lengths run as one batch, and each gets the tokens it gets alone. What the configuration decided, and
    prompt and generation speed, are printed to stderr.

    \b
    Example:
        posexport generate smollm --prompt "Once upon a time" --max-new-tokens 100 --stream
        posexport generate qwen --chat --prompt "Who wrote Faust?" --chat-option enable_thinking=false
        posexport generate llava --chat --image cat.png --prompt "What is this?"
        posexport generate t5 --prompt "translate English to German: A cat sits."
        posexport generate smollm --prompt "A cat" --prompt "My dog likes" --temperature 0.8 --top-p 0.9 --seed 7
        posexport generate bart --prompt "A long text" --num-beams 4 --no-repeat-ngram-size 3 --min-length 20
    """
    from posexport.errors import PosexportError
    from posexport.run.generate.command import continue_texts

    if stream and as_json:
        raise PosexportError("--stream prints text as it comes and --json one document at the end; give one of them")
    prompts, opening = of_record.taken(PromptOptions, choices), of_record.taken(Opening, choices)
    # options that are not on the command line come from the bundle's generation_config.json
    chosen = {name: value for name, value in choices.items() if value not in (None, ())}
    if greedy:
        if chosen.get("do_sample") or chosen.get("num_beams", 1) > 1:
            raise PosexportError(
                "--greedy takes one likeliest token after the other; leave --do-sample or --num-beams out"
            )
        chosen |= {"do_sample": False, "num_beams": 1}
    tell = (lambda piece: click.echo(piece, nl=False)) if stream else None
    done = continue_texts(directory, prompts, GenerationConfig(**chosen), opening, tell)
    if as_json:
        click.echo(done.to_json())
    elif not stream:
        click.echo(done.to_text())
    for line in () if as_json else done.remarks():
        remark(line)
