"""Tasks about pictures: ``image-classification`` and ``image-feature-extraction``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.images.pictures import open_picture, read_pictures
from posexport.run.pipelines.feature_extraction import STATES
from posexport.run.pipelines.pipeline import Pipeline
from posexport.run.pipelines.text_classification import FUNCTIONS
from posexport.run.preparation import open_processor
from posexport.run.scores import LOGITS


class ImagePipeline(Pipeline):
    """A task about pictures: paths, bytes of files, ``PIL.Image`` or arrays.

    As in transformers, a ``PIL.Image`` is turned upright and made RGB, as a file is; an array stays as it is.
    """

    def setup(self) -> None:
        self.processor = open_processor("images", self.session.directory, self.session.manifest)

    def run_pictures(
        self,
        items: Sequence[Any],
        batches: Batches,
        output: str,
        *,
        settings: Mapping[str, Any] | None = None,
        feeds: Mapping[str, NDArray[Any]] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """``output`` of every picture in float32, without the batch.

        Args:
            items: pictures.
            batches: its ``batch_size`` pictures share a call; by default one, as in transformers.
            output: name.
            settings: of the image processor, in place of the bundle's.
            feeds: further inputs of every call.

        Raises:
            PosexportError: no picture, or an output that the bundle does not give.
        """
        for _, values in self.run_outputs(items, batches, [output], settings=settings, feeds=feeds):
            yield values[output]

    def run_outputs(
        self,
        items: Sequence[Any],
        batches: Batches,
        outputs: Sequence[str],
        *,
        settings: Mapping[str, Any] | None = None,
        feeds: Mapping[str, NDArray[Any]] | None = None,
    ) -> Iterator[tuple[tuple[int, int], dict[str, NDArray[np.float32]]]]:
        """Height and width of every picture, and ``outputs`` by name; otherwise as `run_pictures`."""
        names = [spec.name for spec in self.session.outputs]
        for output in outputs:
            if output not in names:
                raise PosexportError(
                    f"the pipeline {self.task} needs the output {output}, and this bundle gives {', '.join(names)}"
                )
        size = batches.batch_size or 1
        for start in range(0, len(items), size):
            pictures = [opened_picture(item) for item in items[start : start + size]]
            arrays = self.processor(pictures, **(settings or {}))
            values = self.session.run({**self.repeated(feeds or {}, len(pictures)), **arrays}, outputs=list(outputs))
            for row, picture in enumerate(pictures):
                # a copy: a view would keep the whole batch
                yield picture_size(picture), {name: np.array(x[row], dtype=np.float32) for name, x in values.items()}

    def repeated(self, feeds: Mapping[str, NDArray[Any]], pictures: int) -> Mapping[str, NDArray[Any]]:
        """``feeds`` of texts, once for each picture if the model reads texts of their own with every image."""
        if not self.session.manifest.limits.multiple_of:
            return feeds
        return {name: np.tile(x, (pictures, *[1] * (x.ndim - 1))) for name, x in feeds.items()}


def picture_size(picture: Any) -> tuple[int, int]:
    """Height and width of an opened picture."""
    if not isinstance(picture, np.ndarray):
        return int(picture.height), int(picture.width)
    (array,) = read_pictures(picture, rgb=False, layout=None)
    return int(array.shape[1]), int(array.shape[2])


def opened_picture(item: Any) -> Any:
    """An array as it is, or a picture that is opened."""
    if isinstance(item, list | tuple):
        raise PosexportError(f"a list of {len(item)} stands where a picture is needed; give one list of pictures")
    return item if isinstance(item, np.ndarray) else open_picture(item)


#: labels of an answer where the caller does not say
_USUAL = 5


class ImageClassification(ImagePipeline):
    """Inputs are pictures."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        top_k: int | None = None,
        function_to_apply: str | None = None,
    ) -> list[Any]:
        """``[{"label", "score"}, ...]`` of each picture, the likeliest first.

        Args:
            items: pictures.
            batches: of calls.
            top_k: labels of an answer at most; None: 5.
            function_to_apply: ``sigmoid``, ``softmax`` or ``none``; None: by ``problem_type`` and the number of labels.
        """
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise PosexportError(f"top_k must be at least 1, got {top_k}; leave it out for the best {_USUAL}")
        if function_to_apply is not None:
            check_choice("function_to_apply", function_to_apply.lower(), FUNCTIONS)
        answers = []
        for logits_L in self.run_pictures(items, batches, LOGITS):
            scores_L = FUNCTIONS[(function_to_apply or self._function(len(logits_L))).lower()](logits_L)
            names = self.files.labels(len(scores_L))
            order = np.argsort(-scores_L, kind="stable")[: top_k or _USUAL]
            answers.append([{"label": names[place], "score": float(scores_L[place])} for place in order])
        return answers

    def _function(self, labels: int) -> str:
        problem = self.files.config.get("problem_type")
        if problem == "regression":
            return "none"
        return "sigmoid" if problem == "multi_label_classification" or labels == 1 else "softmax"


POOLED = "pooler_output"


class ImageFeatureExtraction(ImagePipeline):
    """Inputs are pictures."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        pool: bool = False,
        return_tensors: bool = False,
        image_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """[1, patches, hidden size] of each picture, or [1, hidden size], as nested lists.

        Args:
            items: pictures.
            batches: of calls.
            pool: the pooled vector, of a model that has one.
            return_tensors: NumPy arrays instead of lists.
            image_processor_kwargs: settings of the image processor, in place of the bundle's.
        """
        names = [spec.name for spec in self.session.outputs]
        if pool and POOLED not in names:
            raise PosexportError(f"pool needs {POOLED}, and this bundle gives {', '.join(names)}; leave pool out")
        values = self.run_pictures(items, batches, POOLED if pool else STATES, settings=image_processor_kwargs)
        return [value[None] if return_tensors else value[None].tolist() for value in values]
