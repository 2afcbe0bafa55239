"""Sounds as a model's inputs: the base of tasks about sound."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.audio import AudioProcessor, open_processor
from posexport.audio.sounds import are_numbers
from posexport.pipelines.pipeline import Pipeline
from posexport.runtime.batches import Batches
from posexport.runtime.rank import LOGITS

Sound = NDArray[np.float32]


class AudioPipeline(Pipeline):
    """A task on sounds: paths, bytes, open files, arrays, dictionaries with ``raw`` or ``array``."""

    def setup(self) -> None:
        self.processor: AudioProcessor = open_processor(self.session.directory, self.session.manifest)

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """A tuple or list of numbers is one sound, as an array is."""
        return np.asarray(inputs) if isinstance(inputs, (list, tuple)) and inputs and are_numbers(inputs) else inputs

    def logits(self, sounds: Sequence[Sound], batches: Batches) -> Iterator[NDArray[np.float32]]:
        """Logits of each sound, in order. Sounds share a call only where they are of one length: nothing is padded."""
        most = batches.batch_size or 1
        waiting: list[Sound] = []
        for sound in sounds:
            if waiting and (len(waiting) == most or len(waiting[0]) != len(sound)):
                yield from self._run(waiting)
                waiting = []
            waiting.append(sound)
        if waiting:
            yield from self._run(waiting)

    def _run(self, sounds: Sequence[Sound]) -> NDArray[np.float32]:
        values = self.session.run(self.processor.extract(sounds), outputs=[LOGITS])
        return values[LOGITS].astype(np.float32, copy=False)
