"""optimum-onnx 0.1.0 with transformers 4.57.6: ``optimum-cli export onnx``.

A task must be named for a folder (on the Hub it is inferred); with a cache where it generates, as the inference does.
"""

from pathlib import Path

ENVIRONMENT = REFERENCE = "optimum"
PACKAGES = ("optimum-onnx", "optimum", "transformers", "torch")
_CACHED = ("text-generation", "text2text-generation")


def command(python: Path, checkpoint: Path, into: Path, task: str) -> list[str]:
    """``optimum-cli export onnx`` with the task."""
    named = f"{task}-with-past" if task in _CACHED else task
    program = [str(python), str(python.parent / "optimum-cli"), "export", "onnx"]
    return [*program, "--model", str(checkpoint), "--task", named, str(into)]


def stages(into: Path) -> dict[str, Path]:
    """An encoder-decoder is three files, everything else one."""
    names = {"encoder": "encoder_model", "first": "decoder_model", "step": "decoder_with_past_model"}
    if (into / "decoder_with_past_model.onnx").exists():
        return {stage: into / f"{name}.onnx" for stage, name in names.items()}
    return {"first": into / "model.onnx", "step": into / "model.onnx"}


RENAMES = {"input_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}
