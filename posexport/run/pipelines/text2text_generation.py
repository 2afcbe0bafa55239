"""``text2text-generation``, ``summarization`` and ``translation`` by encoder-decoders.

As in transformers 4.57.6; version 5 has none of these pipelines.
"""

from typing import Any, ClassVar

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.pipelines.generating import GeneratingPipeline, source_tokens, target_token
from posexport.run.pipelines.pipeline import as_inputs

#: of transformers' pipeline
DEFAULTS: dict[str, Any] = {"max_new_tokens": 256, "num_beams": 4}


class Text2TextGeneration(GeneratingPipeline):
    """Inputs are texts.

    Attributes:
        result: begins the key of an answer.
    """

    result: ClassVar[str] = "generated"

    def setup(self) -> None:
        super().setup()
        parameters = dict(self.files.task_parameters(self.task))
        prefix = parameters.pop("prefix", self.files.config.get("prefix"))
        self._prefix = prefix if isinstance(prefix, str) else ""
        self._of_task = parameters

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
        truncation: bool | str | None = None,
        stop_sequence: str | None = None,
        **options: Any,
    ) -> list[Any]:
        """A list of ``{"generated_text"}`` for each input (``summary_text``, ``translation_text``).

        Args:
            items: texts; the prefix that config.json has for the task is put before each.
            batches: of calls.
            return_tensors: ``generated_token_ids`` instead of texts.
            return_text: without effect, as in the library.
            clean_up_tokenization_spaces: no blanks before punctuation.
            truncation: True cuts texts at the limit.
            stop_sequence: a text; its first token ends the generation.
            options: of `Session.generate`.
        """
        for number, item in enumerate(items):
            if not isinstance(item, str) or not item:
                raise PosexportError(f"input {number} must be a text that is not empty, got {item!r:.60}")
        if stop_sequence is not None:
            pieces = self.texts.pieces(stop_sequence)
            if not pieces:
                raise PosexportError(f"stop_sequence {stop_sequence!r} has no tokens; give a text, or leave it out")
            options["eos_token_id"] = pieces[0]
        rows, more = self._encoder_rows([self._prefix + item for item in items], truncation, options)
        generated = self.generated(rows, batches, {**self.resolved(options, DEFAULTS, self._of_task), **more})
        if return_tensors:
            name, start = f"{self.result}_token_ids", self.stated_token("decoder_start_token_id", "bos_token_id")
            begun = [] if start is None else [start]
            return [[{name: ids} for ids in self.sequences(begun, texts, options)] for texts in generated]
        clean_up = clean_up_tokenization_spaces
        return [
            [
                {f"{self.result}_text": self.decode(text.tokens, skip_special_tokens=True, clean_up=clean_up)}
                for text in texts
            ]
            for texts in generated
        ]

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Calls the pipeline; a list of texts with one result each returns a flat list of results."""
        inputs = as_inputs(inputs)
        answers = super().__call__(inputs, batch_size=batch_size, **options)
        if isinstance(inputs, list) and all(len(texts) == 1 for texts in answers):
            return [texts[0] for texts in answers]
        return answers

    def _encoder_rows(
        self, texts: list[str], truncation: bool | str | None, options: dict[str, Any]
    ) -> tuple[list[list[int]], dict[str, Any]]:
        """The ids that the encoder reads, and options that follow from the texts."""
        return [list(encoding.ids) for encoding in self.encoded(texts, truncation=truncation)], {}


class Summarization(Text2TextGeneration):
    """``summarization``: the answer is a ``summary_text``."""

    result = "summary"


class Translation(Text2TextGeneration):
    """``translation``, and ``translation_xx_to_yy``, which names the languages of multilingual models."""

    result = "translation"

    # further options: ``src_lang`` and ``tgt_lang``, by the tokenizer's codes (``en_XX``)

    def setup(self) -> None:
        if self.task == "translation":
            # the first pair of languages that config.json has parameters of, as in transformers
            tasks = self.files.config.get("task_specific_params") or {}
            self.task = next((name for name in tasks if name.startswith("translation")), self.task)
        super().setup()

    def _encoder_rows(
        self, texts: list[str], truncation: bool | str | None, options: dict[str, Any]
    ) -> tuple[list[list[int]], dict[str, Any]]:
        source, target = options.pop("src_lang", None), options.pop("tgt_lang", None)
        named = self.task.split("_")
        if source is None and target is None and len(named) == 4:
            source, target = named[1], named[3]
        around = source_tokens(self.files, self.texts.token_id, source, target)
        if around is None:
            return super()._encoder_rows(texts, truncation, options)
        before, behind = around
        added = len(before) + len(behind)
        limit = self.cut_at(None) if truncation else None
        length = None if limit is None else max(limit - added, 1)
        rows = self.encoded(texts, truncation=truncation, max_length=length, add_special_tokens=False)
        assert target is not None  # `source_tokens` asks for it
        first = target_token(self.files, self.texts.token_id, target)
        return [[*before, *encoding.ids, *behind] for encoding in rows], {"forced_bos_token_id": first}
