"""optimum-onnx 0.1.0 with transformers 4.57.6: ``optimum-cli export onnx``.

A task must be named for a folder (on the Hub it is inferred); with a cache where it generates, as the inference does.
"""

from pathlib import Path

ENVIRONMENT = REFERENCE = "optimum"
PACKAGES = ("optimum-onnx", "optimum", "transformers", "torch")
#: masks of SAM, from features of an image and prompts
MASKS = "prompt_encoder_mask_decoder.onnx"
#: tasks with a cache, by its names
_CACHED = {
    **{name: name for name in ("text-generation", "text2text-generation", "image-to-text")},
    "speech-to-text": "automatic-speech-recognition",
}


def command(python: Path, checkpoint: Path, into: Path, task: str) -> list[str]:
    """``optimum-cli export onnx`` with the task."""
    task = "feature-extraction" if task == "mask-generation" else task
    named = f"{_CACHED[task]}-with-past" if task in _CACHED else task
    program = [str(python), str(python.parent / "optimum-cli"), "export", "onnx"]
    return [*program, "--model", str(checkpoint), "--task", named, str(into)]


def stages(into: Path) -> dict[str, Path]:
    """An encoder-decoder is three files, everything else one."""
    names = {"encoder": "encoder_model", "first": "decoder_model", "step": "decoder_with_past_model"}
    if (into / MASKS).exists():
        return {"encoder": into / "vision_encoder.onnx", "first": into / MASKS, "step": into / MASKS}
    if (into / "decoder_with_past_model.onnx").exists():
        return {stage: into / f"{name}.onnx" for stage, name in names.items()}
    return {"first": into / "model.onnx", "step": into / "model.onnx"}


RENAMES = {"input_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}
