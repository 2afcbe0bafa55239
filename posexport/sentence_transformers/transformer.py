"""The module for sentence-transformers: PyTorch tensors outside, a bundle in ONNX Runtime inside."""

import functools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.sentence_transformers.backend import SCORES, Backend, Text


def _input_module() -> Any:
    """The library's base class of first modules, at its import path since 5.4 or since 5.0."""
    try:
        from sentence_transformers.base.modules import InputModule
    except ImportError:
        try:
            from sentence_transformers.models import InputModule
        except ImportError as err:
            raise PosexportError(
                f"posexport.sentence_transformers needs sentence-transformers 5 or 6, and importing it failed ({err}); "
                "pip install 'sentence-transformers>=5'"
            ) from err
    return InputModule


#: arguments of `Transformer.load` that concern downloads only
_OF_HUB = {"token", "trust_remote_code", "revision", "local_files_only", "cache_dir", "code_revision"}


class Transformer(_input_module()):  # type: ignore[misc]
    """First module of a ``SentenceTransformer``, ``CrossEncoder`` or ``SparseEncoder`` that runs a bundle.

    ``forward`` adds the bundle's output to the features: ``sentence_embedding`` (pooled, projected and normalised in
    the graph), ``token_embeddings``, or the ``scores`` of a cross-encoder. Other modules may follow, for example a
    ``Pooling`` after a bundle converted with ``--task features``.

    Examples:
        >>> from sentence_transformers import SentenceTransformer  # doctest: +SKIP
        >>> from posexport.sentence_transformers import Transformer  # doctest: +SKIP
        >>> model = SentenceTransformer(modules=[Transformer("minilm", provider="cuda")])  # doctest: +SKIP
    """

    #: the library saves the bundle in a subfolder, so that its files do not mix with the bundle's
    save_in_root = False

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        """Opens the bundle in ``directory``.

        Args:
            directory: the bundle.
            options: of `posexport.load`: ``provider`` (also by ONNX Runtime's name), ``precision``, ``threads``,
                ``provider_options``, ``memory``, ``check``.

        Raises:
            PosexportError: no bundle, an unknown option, or a bundle without vectors and scores.
        """
        super().__init__()
        self.directory, self.options = Path(directory), options
        self._backend = Backend(self.directory, options)

    def __repr__(self) -> str:
        return f"Transformer({self._backend.session!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The state without the session; each process of a pool opens another."""
        return {**self.__dict__, "_backend": self.max_seq_length}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._backend, length = Backend(self.directory, self.options), state["_backend"]
        if length != self._backend.max_length:
            self._backend.max_length = length

    @property
    def session(self) -> Any:
        """The `posexport.run.session.Session`."""
        return self._backend.session

    @functools.cached_property
    def tokenizer(self) -> Any:
        """A tokenizer of transformers for the same ids; texts are tokenized by the bundle's tokenizer.json."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        try:
            return AutoTokenizer.from_pretrained(self.directory, local_files_only=True)
        except (OSError, ValueError, KeyError):  # a tokenizer class that transformers does not have
            return PreTrainedTokenizerFast.from_pretrained(self.directory, local_files_only=True)

    @property
    def processor(self) -> Any:
        """The tokenizer, by version 6's name."""
        return self.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """Maximum tokens of texts and pairs, special tokens included."""
        return self._backend.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self._backend.max_length = length

    def get_embedding_dimension(self) -> int | None:
        """Elements of a vector, or labels of a cross-encoder."""
        return self._backend.dimension

    get_word_embedding_dimension = get_sentence_embedding_dimension = get_embedding_dimension

    def preprocess(self, inputs: Sequence[Text], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenizes texts or pairs with ``prompt`` as prefix to tensors, truncated at ``max_seq_length``.

        Raises:
            PosexportError: other inputs, or ``processing_kwargs``.
        """
        if not inputs:
            return {}
        if kwargs.get("processing_kwargs"):
            raise PosexportError(
                "a bundle's tokenizer takes no processing_kwargs; set max_seq_length to change the truncation"
            )
        features = self._backend.preprocess(list(inputs), prompt)
        return {name: x if isinstance(x, int) else torch.from_numpy(x) for name, x in features.items()}

    def tokenize(self, texts: Sequence[Text], **kwargs: Any) -> dict[str, Any]:
        """`preprocess` under its name in versions before 5.4."""
        return self.preprocess(texts, **kwargs)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """``features`` with the bundle's vectors or scores, on the device of the ids."""
        arrays = {name: x.cpu().numpy() if isinstance(x, Tensor) else x for name, x in features.items()}
        device = features["input_ids"].device
        outputs = {name: torch.from_numpy(x).to(device) for name, x in self._backend.forward(arrays).items()}
        return {**features, **outputs}

    def on_model_ready(self, model: Any) -> None:
        """Sets the activation of a ``CrossEncoder`` built from modules to the bundle's; version 6 calls it."""
        rules = self._backend.manifest.pair_rules
        if rules is not None and hasattr(model, "activation_fn") and model.activation_fn is None:
            model.activation_fn = getattr(torch.nn, rules.activation_of(self.get_embedding_dimension() or 1))()

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Copies the bundle to ``output_path``."""
        if Path(output_path).resolve() != self.directory.resolve():
            shutil.copytree(self.directory, output_path, dirs_exist_ok=True)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> "Transformer":
        """Loads the bundle from a folder or a hub repository; sentence-transformers calls it for ``modules.json``.

        ``model_kwargs``: the options of `posexport.load`. Raises PosexportError for arguments without a meaning here.
        """
        if backend not in ("torch", "onnx"):
            raise PosexportError(f"backend={backend!r} is not the bundle's; leave it out, or give a provider")
        length = _length(kwargs.get("processor_kwargs") or kwargs.get("tokenizer_kwargs") or {})
        directory = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if directory is None:
            raise PosexportError(
                f"{model_name_or_path} has no folder {subfolder}, which modules.json names for the bundle"
            )
        module = cls(directory, **{name: value for name, value in (model_kwargs or {}).items() if name not in _OF_HUB})
        _check_config(kwargs.get("config_kwargs") or {}, module)
        if length is not None:
            module.max_seq_length = length
        return module


# the import path in modules.json and in pickles
Transformer.__module__ = "posexport.sentence_transformers"


def _length(kwargs: dict[str, Any]) -> int | None:
    """``model_max_length``, set by ``CrossEncoder(max_length=)``. Raises PosexportError for other options."""
    further = sorted(set(kwargs) - _OF_HUB - {"model_max_length"})
    if further:
        raise PosexportError(
            f"a bundle's tokenizer is its tokenizer.json, which follows no {', '.join(further)} of processor_kwargs; "
            "set it in the checkpoint and convert it again, or leave it out (model_max_length is followed)"
        )
    return kwargs.get("model_max_length")


def _check_config(kwargs: dict[str, Any], module: Transformer) -> None:
    """Raises PosexportError for ``config_kwargs``, which an exported graph cannot follow."""
    labels = module.get_embedding_dimension() if SCORES in module._backend.outputs.values() else None  # noqa: SLF001
    further = {name: value for name, value in kwargs.items() if name not in _OF_HUB}
    if further.get("num_labels", labels) == labels:
        further.pop("num_labels", None)
    if further:
        raise PosexportError(
            f"a bundle's graph follows no {', '.join(sorted(further))} of config_kwargs; convert the checkpoint with "
            "it in config.json, or leave it out"
        )
