"""posexport: ``posexport convert``, its default, in the environment of this checkout."""

from pathlib import Path

ENVIRONMENT, REFERENCE = "", "scoreboard"
PACKAGES = ("posexport", "transformers", "torch")
#: masks of SAM, from features of an image and prompts: transformers.js' name
MASKS = "prompt_encoder_mask_decoder.onnx"


def command(python: Path, checkpoint: Path, into: Path, _task: str) -> list[str]:
    """The documented default; a task is read from the checkpoint."""
    return [str(python), "-m", "posexport", "convert", str(checkpoint), "-o", str(into), "--force"]


def stages(into: Path) -> dict[str, Path]:
    """The files of a bundle by what they compute."""
    names = {"encoder": "encoder_model.onnx", "first": "decoder_model.onnx", "step": "decoder_model.onnx"}
    if (into / MASKS).exists():
        return {"encoder": into / "vision_encoder.onnx", "first": into / MASKS, "step": into / MASKS}
    if (into / "decoder_model.onnx").exists():
        return {stage: into / name for stage, name in names.items()}
    return {"first": into / "model.onnx", "step": into / "model.onnx"}


#: of the decoder of an encoder-decoder: the judge's names of inputs
RENAMES = {"input_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}
