"""Base of the tasks that generate: options of the pipeline, of the checkpoint's files and of the call."""

from collections.abc import Mapping, Sequence
from typing import Any

from posexport.pipelines.text_pipeline import TextPipeline
from posexport.runtime.batches import Batches
from posexport.runtime.generation_config import GenerationConfig

#: options of transformers' ``generate`` that change no text here: completions have no padding, the cache is used
_WITHOUT_EFFECT = ("pad_token_id", "use_cache")

#: options with a default in a pipeline, and the options that this default depends on
_DEFAULTED = ("max_new_tokens", "max_length", "min_new_tokens", "min_length", "do_sample", "temperature", "num_beams")


class GeneratingPipeline(TextPipeline):
    """Base class of the tasks that call `Session.generate`."""

    def generated(self, rows: Sequence[Sequence[int]], batches: Batches, options: Mapping[str, Any]) -> list[list[Any]]:
        """The completions of each row of token ids, in calls of rows of about the same length."""
        stated = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
        config = stated.pop("generation_config", None)
        if config is not None and not isinstance(config, GenerationConfig):
            stated = {**stated_by(config), **stated}
            config = None
        by_row: list[list[Any]] = [[] for _ in rows]
        for chosen in batches.places([len(prompt) for prompt in rows]):
            done = self.session.generate([list(rows[place]) for place in chosen], config, **stated).completions
            count = len(done) // len(chosen)
            for number, place in enumerate(chosen):
                by_row[place] = done[number * count : (number + 1) * count]
        return by_row

    @property
    def stated(self) -> dict[str, Any]:
        """Of `_DEFAULTED`, what generation_config.json says, and where there is none config.json."""
        document = self.files.json("generation_config.json") or self.files.config
        return {name: document[name] for name in _DEFAULTED if document.get(name) is not None}

    def stated_token(self, *names: str) -> int | None:
        """The token id that the checkpoint's files name first."""
        for name in names:
            for document in (self.files.json("generation_config.json"), self.files.config):
                token = document.get(name)
                first = token[0] if isinstance(token, list) and token else token
                if isinstance(first, int):
                    return first
        return None

    def sequences(
        self, begun: Sequence[int], completions: Sequence[Any], options: Mapping[str, Any]
    ) -> list[list[int]]:
        """Token ids of the prompt and each completion, with the end token, padded to the longest."""
        stop_token = options.get("eos_token_id")
        end = stop_token if isinstance(stop_token, int) else self.stated_token("eos_token_id")
        sequences = []
        for completion in completions:
            ended = [end] if completion.finish == "stop" and end is not None else []
            sequences.append([*begun, *completion.tokens, *ended])
        longest, padding = max(map(len, sequences)), self.special_id("pad_token")
        filler = end if padding is None else padding
        return [[*ids, *[filler or 0] * (longest - len(ids))] for ids in sequences]


def stated_by(config: Any) -> dict[str, Any]:
    """The options that a generation config sets: posexport's, transformers', or a dictionary."""
    if isinstance(config, GenerationConfig):
        stated = {name: getattr(config, name) for name in GenerationConfig.__annotations__}
    else:
        stated = dict(config) if isinstance(config, Mapping) else dict(config.to_diff_dict())
    return {name: value for name, value in stated.items() if name != "transformers_version" and value is not None}
