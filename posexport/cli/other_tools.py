"""Commands and options of other exporters, and what to type in posexport. Imports nothing."""

_PRECISION = "type posexport convert SOURCE -o DIR --precision fp16, bf16, int8 or int4"

#: commands
COMMANDS = {
    "audit": "there is no audit yet; posexport verify MODEL.onnx --against SOURCE compares a graph with its source",
    "benchmark": "type posexport bench MODEL",
    "chat": 'type posexport generate DIR --chat --prompt "..."',
    "check": "type posexport verify DIR, or posexport check-shift ENCODING",
    "download": "type hf download REPOSITORY --local-dir DIR, then posexport convert DIR -o BUNDLE",
    "encode": 'type posexport run DIR --text "..."',
    "export": "type posexport convert SOURCE -o DIR",
    "infer": 'type posexport run DIR --text "..."',
    "inference": 'type posexport run DIR --text "..."',
    "inspect": "type posexport explain DIR",
    "optimize": "there is none for graphs of other tools yet; posexport convert --target cpu optimizes its own",
    "predict": 'type posexport run DIR --text "..."',
    "profile": "type posexport explain DIR",
    "quantize": _PRECISION,
    "report": "there is no report page yet; posexport verify DIR prints the proof, posexport explain DIR the kernels",
    "serve": "there is no server; in one of yours, posexport.load(DIR) in Python opens a bundle once for all requests",
    "test": "type posexport verify DIR",
    "tokenize": 'type posexport tokenizer encode TOKENIZER.json --text "..."',
    "validate": "type posexport verify DIR",
    "visualize": "type posexport plot ENCODING -o FILE",
}

#: options, on any command that does not have them
OPTIONS = {
    **dict.fromkeys(("--fp16", "--bf16", "--half", "--dtype"), _PRECISION),
    **dict.fromkeys(("--int8", "--int4", "--quantize", "--quantization"), _PRECISION),
    **dict.fromkeys(
        ("--atol", "--rtol"),
        "posexport verify has --tolerance; without it the tolerance comes from PyTorch's float32 error",
    ),
    **dict.fromkeys(
        ("--batch-size", "--sequence-length", "--seq-len", "--dynamic-axes", "--no-dynamic-axes"),
        "a bundle takes any batch size and length; posexport convert --max-length N limits the length",
    ),
    "--device": "type --provider cpu or --provider cuda",
    "--ep": "type --provider cpu or --provider cuda",
    "--framework": "the source is always PyTorch; leave it out",
    "--fp32": "posexport convert writes float32 unless --precision says otherwise; leave it out",
    "--optimize": "posexport convert optimizes by --target: portable, cpu or cuda",
    "--optimization-level": "posexport convert optimizes by --target: portable, cpu or cuda",
    **dict.fromkeys(("--out", "--output-dir", "--output-path", "--save", "--save-dir"), "type -o PATH"),
    "--num-threads": "type --threads N",
    "--trust-remote-code": "nothing of a checkpoint directory is ever executed; leave it out",
    "--with-past": "decoders are always converted with their KV cache; leave it out",
}

#: other tools' options for the model, which is an argument in posexport
_MODEL = ("-m", "--model", "--model-name", "--model-name-or-path", "--checkpoint")


def about_option(name: str, command: str, argument: str | None) -> str | None:
    """What to type in place of option ``name`` of ``posexport command``; None for an unknown option.

    ``argument``: the name of the command's first argument, such as SOURCE.
    """
    dashed = name.replace("_", "-") if name.startswith("--") else name
    if dashed in _MODEL and argument is not None:
        return f"the model is an argument, not an option: type posexport {command} {argument}"
    return OPTIONS.get(dashed)
