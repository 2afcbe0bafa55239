"""posexport convert"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from posexport.cli import options
from posexport.cli.progress import bar


@click.command("convert")
@click.argument("source")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle's directory.")
@options.task_option
@options.set_option
@click.option("--opset", type=int, help="Opset of the graph; default 18, which every runtime of today takes.")
@click.option("--max-length", type=click.IntRange(min=1), help="The longest input the bundle takes.")
@click.option(
    "--beyond",
    type=click.Choice(["error", "clip", "interpolate"]),
    default="error",
    show_default=True,
    help="What happens beyond the trained length: refused, distances clipped, or the table stretched to --max-length.",
)
@click.option(
    "--cache",
    type=click.Choice(["dynamic", "static", "growing"]),
    default="dynamic",
    show_default=True,
    metavar="[dynamic|static]",
    callback=lambda _context, _parameter, name: "dynamic" if name == "growing" else name,  # its name up to 0.1.0
    help="A decoder's KV cache: dynamic grows with every call, static has slots for so many tokens from the start.",
)
@click.option(
    "--rotate",
    type=click.Choice(["at-write", "at-read"]),
    default="at-write",
    show_default=True,
    help="When a decoder rotates keys: before they are kept, or in every call, all by that call's frequencies.",
)
@click.option(
    "--layout",
    type=click.Choice(["bundle", "genai"]),
    default="bundle",
    show_default=True,
    help="What to write beside the model: genai adds genai_config.json, for onnxruntime-genai.",
)
@click.option(
    "--target",
    "--for",
    "made_for",
    type=click.Choice(["portable", "cpu", "cuda"]),
    default="portable",
    show_default=True,
    help="Standard operators for any runtime, or also ONNX Runtime's own for its CPU or CUDA provider.",
)
@click.option("--lowering", default="auto", show_default=True, help="How attention with positions is computed.")
@click.option("--inline", is_flag=True, help="Write the graph without functions, for OpenVINO and others.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json for a SOURCE that brings none; run --text then uses it.",
)
@options.allow_pickle_option
@options.as_transformers_option
@click.option(
    "--provider",
    help="Where to prove: cpu or cuda; one that does not load is an error. Default: the target's, else cpu.",
)
@options.length_option
@options.threads_option
@click.option("--no-verify", is_flag=True, help="Do not prove the bundle; it is marked as unproven.")
@click.option("--keep", is_flag=True, help="Keep a bundle that missed parity, marked as unproven.")
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@options.json_option
def command(
    source: str,
    output: Path,
    task: str | None,
    settings: tuple[str, ...],
    opset: int | None,
    max_length: int | None,
    beyond: str,
    cache: str,
    rotate: str,
    layout: str,
    made_for: str,
    lowering: str,
    inline: bool,
    tokenizer: Path | None,
    allow_pickle: bool,
    as_transformers: bool,
    provider: str | None,
    lengths: tuple[int, ...],
    threads: int,
    no_verify: bool,
    keep: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Convert SOURCE to a bundle that plain ONNX Runtime runs at any batch size and length, and prove it.

    SOURCE is a directory with config.json and model.safetensors, a built-in model (posexport list models) or
    path/to/file.py:factory. Exits 1, and leaves nothing, if the bundle misses parity with PyTorch.

    \b
    Example:
        posexport convert path/to/all-MiniLM-L6-v2 -o minilm
        posexport convert encoder-shaw-kv --set clip=8 -o shaw
    """
    from posexport.convert import ConvertOptions, convert
    from posexport.sources.load import LoadOptions

    wanted = ConvertOptions(
        load=LoadOptions(task=task, settings=settings, allow_pickle=allow_pickle, as_transformers=as_transformers),
        opset=opset,
        max_length=max_length,
        beyond=beyond,  # type: ignore[arg-type]  # click.Choice gives one of them
        cache=cache,  # type: ignore[arg-type]
        rotate=rotate,  # type: ignore[arg-type]
        layout=layout,  # type: ignore[arg-type]
        made_for=made_for,  # type: ignore[arg-type]
        lowering=lowering,
        inline=inline,
        tokenizer=tokenizer,
        provider=provider,
        lengths=lengths or None,
        threads=threads,
        verify=not no_verify,
        keep=keep,
        force=force,
    )
    # a Python file of the user's may print; stdout is for the result
    with bar("Converting") as progress, redirect_stdout(sys.stderr):
        done = convert(source, output, wanted, progress=progress, remark=lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(done.to_json())
    else:
        click.echo(done.to_text())
    sys.exit(0 if done.good else 1)
