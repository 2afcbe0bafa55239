"""``image-to-text``: the text in a picture (TrOCR, Donut) or about it (BLIP).

As in transformers 4.57.6; version 5 does not have this pipeline.
"""

from collections.abc import Mapping
from typing import Any

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.pipelines.generating import GeneratingPipeline
from posexport.run.pipelines.images import opened_picture
from posexport.run.preparation import open_processor

#: of transformers' pipeline
DEFAULTS: dict[str, Any] = {"max_new_tokens": 256}


class ImageToText(GeneratingPipeline):
    """Inputs are pictures: paths, bytes of files, ``PIL.Image`` or arrays."""

    def setup(self) -> None:
        super().setup()
        self.processor = open_processor("images", self.session.directory, self.session.manifest)

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        max_new_tokens: int | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        """``[{"generated_text"}]`` of each picture.

        Args:
            items: pictures.
            batches: of calls; by default a picture alone, as in transformers.
            max_new_tokens: of each text.
            generate_kwargs: options of `Session.generate`: ``num_beams`` and others.
            options: the same.
        """
        stated = {**(generate_kwargs or {}), **options}
        if max_new_tokens is not None:
            if "max_new_tokens" in (generate_kwargs or {}):
                raise PosexportError("max_new_tokens stands in the call and in generate_kwargs; give it once")
            stated["max_new_tokens"] = max_new_tokens
        chosen, size = self.resolved(stated, DEFAULTS), batches.batch_size or 1
        answers = []
        for start in range(0, len(items), size):
            arrays = self.processor([opened_picture(item) for item in items[start : start + size]])
            done = self.session.generate(arrays, **chosen).completions
            texts = [
                {"generated_text": self.decode(completion.tokens, skip_special_tokens=True)} for completion in done
            ]
            count = len(texts) // len(items[start : start + size])
            answers += [texts[place : place + count] for place in range(0, len(texts), count)]
        return answers
