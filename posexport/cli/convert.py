"""posexport convert"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args

import click

from posexport.cli import complete, options
from posexport.cli.command import Command
from posexport.cli.progress import bar, remark
from posexport.cli.source_argument import check_source
from posexport.recipe import CacheName, LayoutName, RotationName
from posexport.spec import Beyond
from posexport.targets.precision_options import BLOCK_SIZES, IOName, QuantizerName
from posexport.targets.precisions import PRECISIONS
from posexport.targets.providers import PROVIDERS
from posexport.targets.target import TARGETS

_GROUPS = {
    "Source": ("task", "settings", "tokenizer", "allow_pickle", "as_transformers"),
    "Lengths and KV cache": ("max_length", "beyond", "cache", "rotation"),
    "Graph": ("target", "lowering", "opset", "inline"),
    "Precision": ("precision", "io", "keep_float", "weight_only", "block_size", "quantizer", "calibrate", "texts"),
    "Output": ("output", "layout", "force", "keep"),
    "Proof": ("no_verify", "lengths", *options.RUNTIME),
}


@click.command("convert", cls=Command, groups=_GROUPS, renamed={"--for": "--target", "--rotate": "--rotation"})
@click.argument("source", shell_complete=complete.sources, callback=check_source)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory of the bundle.")
@options.task_option
@options.set_option
@click.option("--opset", type=int, help="ONNX opset of the graph; default 18.")
@click.option("--max-length", type=click.IntRange(min=1), metavar="N", help="The longest input, in tokens.")
@click.option(
    "--beyond",
    type=click.Choice(get_args(Beyond)),
    default="error",
    show_default=True,
    help="Inputs beyond the trained length: error, clip the distances, or interpolate the table up to --max-length.",
)
@click.option(
    "--cache",
    type=options.RenamedChoice(get_args(CacheName), {"growing": "dynamic"}),
    default="dynamic",
    show_default=True,
    help="KV cache of a decoder: dynamic is reallocated each step, static is a fixed-size buffer.",
)
@click.option(
    "--rotation",
    type=click.Choice(get_args(RotationName)),
    default="at-write",
    show_default=True,
    help="When RoPE is applied to keys: as they are written to the KV cache, or each time they are read.",
)
@click.option(
    "--layout",
    type=click.Choice(get_args(LayoutName)),
    default="bundle",
    show_default=True,
    help="Whose files the directory looks like: posexport's own, onnxruntime-genai's, optimum's or transformers.js'.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default="portable",
    show_default=True,
    help=f"portable: standard operators only; {', '.join(PROVIDERS)}: also ONNX Runtime's own for that provider.",
)
@click.option(
    "--lowering",
    default="auto",
    show_default=True,
    shell_complete=complete.lowerings,
    help="How attention is implemented in the graph, see posexport list lowerings.",
)
@click.option("--inline", is_flag=True, help="Write no ONNX functions, for runtimes without them (OpenVINO).")
@click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    multiple=True,
    default=("fp32",),
    show_default=True,
    help="Of weights and activations; positions stay float32. Repeatable with --layout transformers.js.",
)
@click.option(
    "--io",
    type=click.Choice(get_args(IOName)),
    default="float32",
    show_default=True,
    help="Real-valued inputs and outputs of an fp16 or bf16 model: float32, or half for the model's own precision.",
)
@click.option(
    "--keep-float",
    multiple=True,
    metavar="PATTERN",
    help="Do not quantize weights whose names match, e.g. '*v_proj*' (repeatable).",
)
@click.option("--weight-only", is_flag=True, help="With int8: quantize weights only, in blocks.")
@click.option(
    "--block-size",
    type=int,
    default=BLOCK_SIZES[0],
    show_default=True,
    help="Weights that share a scale, where only weights are quantized: 32 or 128.",
)
@click.option(
    "--quantizer",
    type=click.Choice(get_args(QuantizerName)),
    default="rtn",
    show_default=True,
    help="How weights of 4 bits are rounded: to nearest, by HQQ, or by GPTQ on the texts of --calibrate.",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    metavar="TEXTS",
    help="With int8: static scales of activations, measured on these texts, one a line. With gptq: its texts.",
)
@click.option(
    "--texts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measure what the precision costs on these texts, one a line: cosine, top-1, perplexity against float32.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json, for a SOURCE that has none.",
)
@options.allow_pickle_option
@options.as_transformers_option
@click.option(
    "--provider",
    help="Provider to verify on: cpu or cuda. Fails if it is not available. Default: the target's, else cpu.",
)
@options.length_option
@options.threads_option
@click.option("--no-verify", is_flag=True, help="Skip the proof; the bundle is marked as not proven.")
@click.option("--keep", is_flag=True, help="Keep a bundle whose proof failed, marked as not proven.")
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@options.verbosity_options
@options.json_option
def command(
    source: str,
    output: Path,
    settings: tuple[str, ...],
    lengths: tuple[int, ...],
    no_verify: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Convert a model to ONNX and prove that it is right.

    SOURCE is a directory with config.json and model.safetensors, a Hub id (org/name, org/name@revision), a built-in
    model (posexport list models) or path/to/file.py:factory. DIR becomes a bundle: the ONNX model, its tokenizer and
    configuration, and the proof, which compares it with PyTorch over a grid of lengths, batch sizes and paddings. If
    the ONNX model is less accurate than PyTorch float32, nothing is written and the exit code is 1.

    \b
    Example:
        posexport convert path/to/all-MiniLM-L6-v2 -o minilm
        posexport convert encoder-shaw-kv --set clip=8 -o shaw
    """
    import posexport
    from posexport.sources.settings import parse

    # a Python file of the user's may print; stdout is for the result
    with bar("Converting") as progress, redirect_stdout(sys.stderr):
        done = posexport.convert(
            source,
            output,
            settings=parse(settings),
            lengths=lengths or None,
            verify=not no_verify,
            progress=progress,
            remark=remark,
            **choices,
        )
    click.echo(done.to_json() if as_json else done.to_text())
    sys.exit(0 if done.good else 1)
