"""transformers.exporters of transformers 5.24: ``CHECKPOINT DIRECTORY TASK``, as its documentation calls it.

``OnnxConfig(dynamic=True)``; generative models use ``export_for_generation``, which writes a file for prefill and one
for a decode step. It leaves the encoder of an encoder-decoder out, which is then exported by itself.
"""

import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = REFERENCE = "scoreboard"
PACKAGES = ("transformers", "torch", "onnxscript")


def command(python: Path, checkpoint: Path, into: Path, task: str) -> list[str]:
    """This module, since the exporter has no command line."""
    return [str(python), "-m", __name__, str(checkpoint), str(into), task]


def stages(into: Path) -> dict[str, Path]:
    """One file, or the prompt's and the step's, with the encoder's folder."""
    if not (into / "decode.onnx").exists():
        return {"first": into / "model.onnx", "step": into / "model.onnx"}
    encoder = into / "encoder" / "model.onnx"
    files = {"first": into / "prefill.onnx", "step": into / "decode.onnx"}
    return {"encoder": encoder, **files} if encoder.exists() else files


RENAMES = {"attention_mask": "encoder_attention_mask", "encoder_outputs.last_hidden_state": "encoder_hidden_states"}


def states(config: Any) -> dict[str, int]:
    """Inputs that its caches hold beside keys and values, by the ends of their names."""
    window = getattr(config.get_text_config(), "sliding_window", None)
    return {"_sliding_window_tensor": window} if window else {}


def main(checkpoint: str, directory: str, task: str) -> None:
    import torch
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    from ci.lab.scoreboard.exporters.torch import SAMPLE, SAMPLE_LEFT, traced
    from ci.lab.scoreboard.reference import load

    model, config = load(checkpoint), OnnxConfig(dynamic=True)
    halves = task in ("text2text-generation", "image-to-text", "speech-to-text")
    inputs = traced(model, SAMPLE_LEFT if task == "text-generation" else SAMPLE)
    if not halves and task != "text-generation":
        OnnxExporter().export(model, inputs, config=config).save_pretrained(directory)
        return
    if halves:
        encoder = OnnxExporter().export(model.get_encoder(), dict(inputs), config=config)
        encoder.save_pretrained(Path(directory, "encoder"))
        # one token alone would fix the length of the prompt, and of its cache
        inputs["decoder_input_ids"] = torch.arange(6, 6 + 2 * 3).reshape(2, 3)
    OnnxExporter().export_for_generation(model, inputs, config=config).save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
