"""mobius-onnx 0.1.0: ``mobius build``, which writes graphs without tracing a model."""

from pathlib import Path

ENVIRONMENT, REFERENCE = "mobius", "scoreboard"
PACKAGES = ("mobius-onnx", "transformers", "torch")


def command(python: Path, checkpoint: Path, into: Path, _task: str) -> list[str]:
    """The documented command line; a task is detected from the checkpoint."""
    return [str(python), str(python.parent / "mobius"), "build", "--model", str(checkpoint), str(into)]


def stages(into: Path) -> dict[str, Path]:
    """An encoder-decoder is two files, everything else one."""
    if (into / "decoder" / "model.onnx").exists():
        decoder = into / "decoder" / "model.onnx"
        return {"encoder": into / "encoder" / "model.onnx", "first": decoder, "step": decoder}
    return {"first": into / "model.onnx", "step": into / "model.onnx"}


RENAMES = {"input_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}
