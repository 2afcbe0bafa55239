"""Configuration files of a checkpoint, as a bundle carries them: labels, problem type, parameters of tasks."""

import functools
from pathlib import Path
from typing import Any

from posexport.bundle.manifest import Manifest
from posexport.bundle.read import json_object
from posexport.errors import PosexportError

#: default special tokens of BERT and RoBERTa, for tokenizer files without names of special tokens
USUAL = {
    "mask_token": ("[MASK]", "<mask>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
}


class ModelFiles:
    """The JSON files of the bundle in ``directory``."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file; empty if the bundle does not have the file."""
        return json_object(self._directory, self._manifest, name)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Returns ``config.json``."""
        return self.json("config.json")

    @functools.cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """Returns ``tokenizer_config.json``."""
        return self.json("tokenizer_config.json")

    def special_token(self, name: str) -> str | None:
        """A special token by transformers' name, e.g. ``mask_token``; None if the files do not name it.

        Files from before 2020 name no token at all (`names_tokens`); the caller then uses `USUAL`, the defaults of
        BERT's and RoBERTa's tokenizer classes.
        """
        for stated in (self.tokenizer_config, self.json("special_tokens_map.json")):
            token = stated.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                return content
        return None

    @property
    def names_tokens(self) -> bool:
        """Whether any special token is named."""
        stated = {*self.tokenizer_config, *self.json("special_tokens_map.json")}
        return any(name.endswith("_token") for name in stated if not name.startswith("add_"))

    def task_parameters(self, task: str) -> dict[str, Any]:
        """What ``task_specific_params`` of config.json says of ``task``."""
        stated = self.config.get("task_specific_params")
        parameters = stated.get(task) if isinstance(stated, dict) else None
        return parameters if isinstance(parameters, dict) else {}

    def labels(self, count: int) -> list[str]:
        """The names of ``count`` labels by ``id2label``; ``LABEL_0`` and so on where it says nothing, as the library.

        Raises PosexportError where it names other labels than the model has.
        """
        stated = self.config.get("id2label")
        if not isinstance(stated, dict) or not stated:
            return [f"LABEL_{number}" for number in range(count)]
        try:
            names = {int(number): str(name) for number, name in stated.items()}
            return [names[number] for number in range(count)]
        except (KeyError, ValueError) as err:
            raise PosexportError(
                f"id2label of {self._directory / 'config.json'} names {len(stated)} labels, and the model has {count}; "
                "correct it and convert again"
            ) from err
