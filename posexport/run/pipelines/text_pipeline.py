"""Base class of tasks on texts: tokenizes texts and pairs, and returns the outputs of each row without padding."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import did_you_mean
from posexport.base.spec import TOKENS
from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.feeds import limit_sentence
from posexport.run.pipelines.pipeline import USUAL, Pipeline
from posexport.run.texts import Texts

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

#: ``model_max_length`` above this means that nobody knows, as in transformers
_LARGEST = 10**20
STRATEGIES = ("longest_first", "only_first", "only_second", "do_not_truncate")
#: a text, or a pair of them; where they are split into words already, lists of words
Input = str | tuple[str, str] | list[str]
Row = dict[str, NDArray[Any]]


class TextPipeline(Pipeline):
    """A task with texts as inputs.

    Attributes:
        shortening: the option for inputs that are too long.
    """

    shortening = "truncation=True to use its first ones"

    def setup(self) -> None:
        self.texts = Texts(self.session.directory, self.session.manifest)

    def encoded(
        self,
        inputs: Sequence[Input],
        *,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        add_special_tokens: bool = True,
        split: bool = False,
    ) -> "list[Encoding]":
        """Tokenizes each input by the `tokenizers` library.

        Args:
            inputs: texts, pairs of texts, or texts that are ``split`` into words.
            truncation: as transformers' tokenizers take it: True or a strategy cuts at ``max_length``.
            max_length: tokens; None: the tokenizer's ``model_max_length``, or where the model ends.
            stride: tokens that a part shares with the one before; parts are the row's ``overflowing``.
            add_special_tokens: of the tokenizer.
            split: inputs are lists of words.

        Raises:
            PosexportError: an input that is no text, or has more tokens than the bundle takes.
        """
        for number, text in enumerate(inputs):
            check_input(text, number, split=split)
        strategy = truncation_strategy(truncation, max_length)
        limit = None if strategy == "do_not_truncate" else self.cut_at(max_length)
        try:
            tokenizer = self._tokenizer(limit, strategy, stride)
            rows = tokenizer.encode_batch(list(inputs), is_pretokenized=split, add_special_tokens=add_special_tokens)
        except BaseException as err:  # the library raises Exception, and its panics are none
            if isinstance(err, KeyboardInterrupt | SystemExit):
                raise
            raise PosexportError(
                f"the tokenizer cannot cut to {limit} tokens ({strategy}) with a stride of {stride}: {err}"
            ) from err
        self._check_lengths(rows)
        return self.texts.checked(rows)

    def cut_at(self, max_length: int | None) -> int | None:
        """Tokens at which truncation cuts: the smallest of ``max_length``, the tokenizer's and the model's limits."""
        stated = self.known_length if max_length is None else max_length
        ends = [end for end in (self.session.manifest.limits.max_length, stated) if end is not None]
        return min(ends, default=None)

    def special_id(self, name: str) -> int | None:
        """The id of a special token by transformers' name, e.g. ``mask_token``; None if there is no token."""
        token = self.files.special_token(name)
        spellings = (token,) if token is not None else () if self.files.names_tokens else USUAL[name]
        ids = (self.texts.token_id(spelling) for spelling in spellings)
        return next((number for number in ids if number is not None), None)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, clean_up: bool | None = None) -> str:
        """The text of ``ids``. ``clean_up``: no blanks before punctuation; None: as tokenizer_config.json says."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        if clean_up is None:
            clean_up = bool(self.files.tokenizer_config.get("clean_up_tokenization_spaces", False))
        # destructive for BPE, for which transformers 5 ignores it
        return cleaned_up(text) if clean_up and type(self.tokenizer.model).__name__ != "BPE" else text

    def joined(self, tokens: Sequence[str]) -> str:
        """The text of tokens, as the vocabulary spells them."""
        decoder = self.tokenizer.decoder
        text: str = " ".join(tokens) if decoder is None else decoder.decode(list(tokens))
        return text

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """Without truncation and padding."""
        return self._tokenizer(None, STRATEGIES[0], 0)

    @property
    def known_length(self) -> int | None:
        """The tokenizer's ``model_max_length``, where the files say it."""
        stated = self.files.tokenizer_config.get("model_max_length")
        return int(stated) if isinstance(stated, int | float) and stated < _LARGEST else None

    def run_rows(
        self, rows: "Sequence[Encoding]", batches: Batches, outputs: Sequence[str], keep: Callable[[int, Row], Any]
    ) -> list[Any]:
        """``keep(number, outputs)`` of every row, which are run in batches of about the same length.

        ``outputs``: names; those with an axis of tokens are cut to the tokens of the row.
        """
        results: list[Any] = [None] * len(rows)
        for number, values in self._outputs(rows, batches, outputs):
            results[number] = keep(number, values)
        return results

    def _outputs(
        self, rows: "Sequence[Encoding]", batches: Batches, outputs: Sequence[str]
    ) -> Iterator[tuple[int, Row]]:
        axes = {spec.name: spec.axes for spec in self.session.outputs}
        if missing := [name for name in outputs if name not in axes]:
            raise PosexportError(
                f"the pipeline {self.task} needs the output {missing[0]}, and this bundle gives {', '.join(axes)}"
            )
        for chosen in self._calls([len(encoding.ids) for encoding in rows], batches):
            feeds = self.texts.padded([rows[number] for number in chosen])
            values = self.session.run(feeds, outputs=outputs)
            for place, number in enumerate(chosen):
                count = len(rows[number].ids)
                yield (
                    number,
                    {name: self._of_row(value[place], axes[name][1:], count) for name, value in values.items()},
                )

    def _of_row(self, value: NDArray[Any], axes: Sequence[str | int], count: int) -> NDArray[Any]:
        """One row's output in float32, without padding."""
        if axes and axes[0] in TOKENS:
            start = self.texts.start(len(value), count)
            value = value[start : start + count]
        return value.astype(np.float32, copy=False)

    def _calls(self, lengths: Sequence[int], batches: Batches) -> Iterator[list[int]]:
        """Rows that share a call; only rows of the same length if padding would change the result."""
        spec = self.session.manifest
        padded = any(tensor.role == "mask" for tensor in spec.inputs) and not spec.limits.length_dependent
        if padded:
            yield from batches.places(lengths)
            return
        for length in sorted(set(lengths), reverse=True):
            rows = [number for number, count in enumerate(lengths) if count == length]
            for places in batches.places([length] * len(rows)):
                yield [rows[place] for place in places]

    def _check_lengths(self, rows: "Sequence[Encoding]") -> None:
        limits = self.session.manifest.limits
        for number, encoding in enumerate(rows):
            if not encoding.ids:
                raise PosexportError(f"input {number} has no tokens; leave it out")
            if limits.max_length is not None and len(encoding.ids) > limits.max_length:
                raise PosexportError(
                    f"input {number} has {len(encoding.ids)} tokens, {limit_sentence(limits)}; shorten it or give "
                    f"{self.shortening}"
                )

    @functools.cached_property
    def _tokenizer(self) -> "Callable[[int | None, str, int], Tokenizer]":
        @functools.lru_cache(maxsize=4)
        def opened(limit: int | None, strategy: str, stride: int) -> "Tokenizer":
            tokenizer = self.texts.fresh()
            if limit is not None:
                tokenizer.enable_truncation(
                    limit, stride=stride, strategy=strategy, direction=self.texts.truncation_side
                )
            return tokenizer

        return opened


def cleaned_up(text: str) -> str:
    """Without blanks before punctuation and within English contractions, as transformers' tokenizers do it."""
    for before, after in (
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ):
        text = text.replace(before, after)
    return text


def truncation_strategy(truncation: bool | str | None, max_length: int | None) -> str:
    """The strategy of transformers' ``truncation`` argument; ``max_length`` alone cuts too, as in the library."""
    if truncation is None:
        return "do_not_truncate" if max_length is None else "longest_first"
    if isinstance(truncation, bool):
        return "longest_first" if truncation else "do_not_truncate"
    if truncation not in STRATEGIES:
        raise PosexportError(f"truncation must be True, False or one of {', '.join(STRATEGIES)}, got {truncation!r}")
    return truncation


#: arguments of transformers' tokenizers that `TextPipeline.encoded` has; padding is done where rows share a call
_OPTIONS = ("truncation", "max_length", "add_special_tokens")
_WITHOUT_EFFECT = ("padding", "return_tensors")
TOKENIZER_OPTIONS = (*_OPTIONS, *_WITHOUT_EFFECT)


def tokenizer_options(stated: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of `TextPipeline.encoded` in ``tokenizer_kwargs``; PosexportError for others."""
    options = {name: value for name, value in (stated or {}).items() if name not in _WITHOUT_EFFECT}
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, _OPTIONS, f"known: {', '.join(_OPTIONS)}")
            raise PosexportError(f"the tokenizer takes no {name} here; {hint}")
    return options


def check_input(value: object, number: int, *, split: bool = False) -> None:
    """Raises PosexportError unless ``value`` is a text or a pair of texts (``split``: a list of words) in Unicode."""
    parts = value if isinstance(value, tuple) or (split and isinstance(value, list)) else (value,)
    for text in parts:
        if not isinstance(text, str):
            raise PosexportError(f"input {number} must be a text, got {type(text).__name__}; give a string")
        try:
            text.encode()
        except UnicodeEncodeError as err:
            raise PosexportError(f"input {number} ({text!a:.60}) is not Unicode; give it as UTF-8") from err
