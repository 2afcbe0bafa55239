"""A checkpoint through transformers' own exporter: ``CHECKPOINT DIRECTORY [FUSIONS]``. Writes model.onnx."""

import sys

import torch
import transformers
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from ci.lab.rivals.exporters.loading import load


def main(checkpoint: str, directory: str, fusions: str | None = None) -> None:
    """Batch and lengths are dynamic; a decoder takes a cache of 5 tokens in the sample, and 2 new ones."""
    model = load(checkpoint)
    config = model.config
    past, new = 5, 2
    sample = {"input_ids": torch.arange(1, 1 + 2 * new).reshape(2, new)}
    if config.architectures[0].endswith("ForCausalLM"):
        cache = transformers.DynamicCache(config=config)
        model(torch.arange(1, 1 + 2 * past).reshape(2, past), past_key_values=cache, use_cache=True)
        sample |= {"attention_mask": torch.ones(2, past + new, dtype=torch.int64), "past_key_values": cache}
    else:
        sample["attention_mask"] = torch.ones(2, new, dtype=torch.int64)
    exported = OnnxExporter().export(model, sample, config=OnnxConfig(dynamic=True, ort_fusions=fusions))
    exported.save_pretrained(directory)


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
