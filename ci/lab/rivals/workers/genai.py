"""onnxruntime-genai's token loop, as its users call it. Runs where onnxruntime-genai is installed.

The first token after the prompt is given, so that its logits can be compared; then tokens are the best ones. The loop
computes a token's logits when the next one is asked for: the call after the given token only chooses (a warm-up).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from posexport.inspect.bench.workers.job import Job, Reader, main


class Loop:
    def __init__(self, job: Job) -> None:
        config = og.Config(job.model)
        options = {"intra_op_num_threads": job.threads, "session.intra_op.allow_spinning": "0"}
        if job.options.get("spinning"):
            del options["session.intra_op.allow_spinning"]
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model, self._job = og.Model(config), job
        self.clear()

    def clear(self) -> None:
        self._calls = 0
        params = og.GeneratorParams(self._model)
        room = self._job.room + 1
        params.set_search_options(max_length=room, min_length=room, batch_size=self._job.batch, do_sample=False)
        self._generator = og.Generator(self._model, params)

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        self._calls += 1
        if self._calls <= 2:
            self._generator.append_tokens(ids.astype(np.int32))
            return np.asarray(self._generator.get_logits())[:, -1]
        self._generator.generate_next_token()
        return np.zeros(0)


def reader(job: Job) -> Reader:
    if not Path(job.model, "genai_config.json").is_file():
        raise SystemExit(f"{job.model} has no genai_config.json")
    return Loop(job)


if __name__ == "__main__":
    main(reader, ("onnxruntime-genai", "onnxruntime"))
