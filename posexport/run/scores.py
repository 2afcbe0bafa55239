"""Session methods with the signatures of ``CrossEncoder``: scores of pairs, and documents sorted by them.

A text over the limit is truncated at its end, and the template's last tokens, after which the model predicts, replace
the end that remains (``Transformer._restore_chat_template_suffix`` of sentence-transformers 6).

Nogueira and Cho, "Passage Re-ranking with BERT" (arXiv:1901.04085). A decoder that predicts yes or no (Qwen3-Reranker)
reads both texts in a template; its score is the probability of yes, normalised over yes and no.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import PairRules
from posexport.errors import PosexportError
from posexport.run.activations import Floats, activation, softmax
from posexport.run.batches import BATCH_TOKENS, Batches
from posexport.run.call_forms import as_pairs, as_texts, refuse, with_bar
from posexport.run.chat import Chat, Message
from posexport.run.embed import prompt_of
from posexport.run.hybrid_methods import HybridMethods
from posexport.run.late_interaction import DOCUMENT, QUERY, maxsim
from posexport.run.pages import as_pictures
from posexport.run.texts import Texts, check_texts
from posexport.run.vectors import CallKeywords, pages_of

#: two contents that end in different tokens: tokens that both rendered texts end with are the template's
_FILLERS = ("0", "1 2 3 4")
#: a pair, the pair with another query, and the pair with another document
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))


@dataclass(frozen=True)
class TokenRow:
    """Token ids of one text with the further inputs of the graph."""

    ids: list[int]

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    @property
    def attention_mask(self) -> list[int]:
        return [1] * len(self.ids)


def message_rows(
    pairs: Sequence[tuple[str, str]], tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str
) -> list[TokenRow]:
    """Tokenizes pairs in the chat template, with ``prompt`` as the system message, truncated by the rules.

    Raises PosexportError for a template that leaves out the query or the document.
    """
    for column in zip(*pairs, strict=True):
        check_texts(column, "text")
    _check_template(chat, rules)
    rendered = [_rendered(chat, rules, prompt, pair) for pair in pairs]
    rows = tokenizer.cut_pieces(rendered, rules.max_length)
    if rules.suffix_kept and any(len(ids) == rules.max_length for ids in rows):
        suffix = _suffix(tokenizer, chat, rules, prompt)
        rows = [_with_suffix(ids, suffix) if len(ids) == rules.max_length else ids for ids in rows]
    return [TokenRow(ids) for ids in rows]


def _rendered(chat: Chat, rules: PairRules, prompt: str, pair: tuple[str, str]) -> str:
    contents = [("system", prompt)] * bool(prompt) + list(zip(("query", "document"), pair, strict=True))
    messages: list[Message] = [
        {"role": role, "content": text if rules.messages == "flat" else [{"type": "text", "text": text}]}
        for role, text in contents
    ]
    options = {"add_generation_prompt": False} | rules.chat_options
    return chat.render(messages, **options)


def _check_template(chat: Chat, rules: PairRules) -> None:
    whole, *changed = (_rendered(chat, rules, "", pair) for pair in _PROBES)
    if lost := [role for role, text in zip(("query", "document"), changed, strict=True) if text == whole]:
        raise PosexportError(
            f"the chat template of this bundle leaves out the {' and the '.join(lost)} of a pair; it must know both "
            "roles: add the chat template of the reranker to the checkpoint and convert again"
        )


def _suffix(tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str) -> list[int]:
    """The last tokens of the template, after both contents; empty if the template adds no content."""
    first, second = tokenizer.cut_pieces(
        [_rendered(chat, rules, prompt, (filler, filler)) for filler in _FILLERS], length=None
    )
    shorter = min(len(first), len(second))
    common = next((count for count in range(shorter) if first[-1 - count] != second[-1 - count]), shorter)
    return first[len(first) - common :] if 0 < common < shorter else []


def _with_suffix(ids: list[int], suffix: list[int]) -> list[int]:
    end = suffix[-len(ids) :] if suffix else []
    return ids[: len(ids) - len(end)] + end


LOGITS = "logits"


class Ranked(TypedDict):
    """A ranked document: its index in the list of documents, its score, and with ``return_documents`` its text."""

    corpus_id: int
    score: float
    text: NotRequired[str]


def activated(
    logits_BL: Floats, rules: PairRules, activation_fn: str | Callable[[NDArray[Any]], NDArray[Any]] | None = None
) -> Floats:
    """Applies ``activation_fn``, else the activation of the rules, to logits; [B] for one label, else [B, L]."""
    labels = logits_BL.shape[1]
    chosen = activation_fn or rules.activation_of(labels)
    scores = activation(chosen)(logits_BL)
    return scores[:, 0] if labels == 1 and scores.ndim > 1 else scores


def in_order(scores: Floats, top_k: int | None) -> list[Ranked]:
    """The documents by descending score; equal scores keep the order of the documents."""
    if scores.ndim != 1:
        raise PosexportError(
            f"this model gives {scores.shape[1]} scores a pair, which do not rank documents; use predict"
        )
    if top_k is not None and top_k < 1:
        raise PosexportError(f"top_k must be at least 1, got {top_k}; leave it out for all documents")
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(corpus_id=int(place), score=float(scores[place])) for place in order]


#: an activation by its name in torch.nn, a module of torch.nn, or a function of NumPy arrays
Activation = str | Callable[[NDArray[Any]], NDArray[Any]]


class Scoring(CallKeywords, total=False):
    """Further keyword arguments of `ScoreMethods`."""

    instruction: str | None


class ScoreMethods(HybridMethods):
    """Scores of pairs of texts, and rankings of documents."""

    def predict(
        self,
        inputs: Iterable[tuple[str, str]] | tuple[str, str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        **extra: Unpack[Scoring],
    ) -> Any:
        """Scores pairs of texts as ``CrossEncoder.predict`` does.

        Returns [pairs], or [pairs, labels] for several labels; for a single pair one score, or [labels]. Pairs are
        truncated by the manifest's ``pair_rules``.

        Args:
            inputs: a pair (query, document), or pairs: a list, an array of strings [pairs, 2], a generator.
            prompt_name: name of the bundle's prompt that precedes each first text; None: the default prompt.
            prompt: text in place of a named prompt. For a model with a template (Qwen3-Reranker), its instruction.
            batch_size: maximum pairs of one call; None: as many as ``batch_tokens`` allow.
            show_progress_bar: show a progress bar on stderr.
            activation_fn: function that is applied to the logits, by its name in torch.nn (``Sigmoid``,
                ``Identity``), or a function of an array [pairs, labels]; None: the checkpoint's activation.
            apply_softmax: softmax over several labels, after the activation.
            convert_to_numpy: return one array; False: a list.
            extra: ``instruction``: replaces the default instruction of a model with a template; ``batch_tokens`` and
                ``progress`` as in `encode`.

        Raises:
            PosexportError: a bundle that does not score pairs, an unknown prompt or activation, an argument that needs
                PyTorch (``convert_to_tensor``, ``device``, ``pool``).
        """
        rules = self.manifest.pair_rules
        if rules is None:
            raise PosexportError(
                f"this bundle is for {self.manifest.task} and scores no pairs of texts; convert a cross-encoder, or a "
                "decoder with --task text-ranking (of a vector for each token: use rank)"
            )
        pairs, single = as_pairs(extra.pop("sentences", None) if inputs is None else inputs)
        instruction = _instruction(rules, extra.pop("instruction", None), prompt)
        batches = _batches("Scoring", batch_size, show_progress_bar, extra)
        refuse("predict", extra)
        before = "" if instruction is not None else prompt_of(rules, prompt_name, prompt)
        if not pairs:
            return np.array([]) if convert_to_numpy else []
        if rules.messages is None:
            rows = self._texts.pairs([(before + query, document) for query, document in pairs], instruction)
        else:
            rows = message_rows(pairs, self._texts, self._chat, rules, before)
        scores = activated(batches.run(self._giving(LOGITS), self._texts, rows), rules, activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = softmax(scores)
        return scores[0] if single else scores if convert_to_numpy else list(scores)

    def rank(
        self,
        query: str,
        documents: Iterable[Any],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        **extra: Unpack[Scoring],
    ) -> list[Ranked]:
        """Ranks documents by their scores with the query, highest first, as ``CrossEncoder.rank`` does.

        A model with token vectors (ColBERT) scores by MaxSim, of pages (ColPali) too. Another model must have one
        label.

        Args:
            query: one text.
            documents: the texts to rank; of a model of pages their pictures (`posexport.run.images`).
            top_k: maximum documents to return; None: all.
            return_documents: add the text of each document.
            prompt_name: see `predict`, like the further arguments and errors.
            prompt: see `predict`.
            batch_size: see `predict`.
            show_progress_bar: see `predict`.
            activation_fn: see `predict`.
            extra: see `predict`.

        Examples:
            >>> session = posexport.load("reranker")  # doctest: +SKIP
            >>> session.rank("What do cats eat?", ["Mice.", "The moon is far."])  # doctest: +SKIP
            [{'corpus_id': 0, 'score': 0.93}, {'corpus_id': 1, 'score': 0.02}]
        """
        rules = self.manifest.text_rules
        of_pages = pages_of(rules) is not None
        if of_pages and return_documents:
            raise PosexportError("pages are pictures, of which rank returns no text; leave out return_documents")
        texts = _documents(query, documents, pictures=of_pages)
        if rules is None or rules.tokens is None:
            scores = self.predict(
                [(query, text) for text in texts],
                prompt_name,
                prompt,
                batch_size,
                show_progress_bar,
                activation_fn,
                **extra,
            )
        else:
            if extra.pop("instruction", None) is not None:
                raise PosexportError("this model has no template that an instruction could stand in; leave it out")
            if activation_fn is not None:
                raise PosexportError("this model compares vectors by MaxSim and has no activation_fn; leave it out")
            if prompt_name not in (None, QUERY):
                raise PosexportError(f"prompt_name {prompt_name!r:.60}: the query's is {QUERY!r} here; leave it out")
            batches = _batches("Encoding", batch_size, show_progress_bar, extra)
            refuse("rank", extra)
            (query_TC,) = self._token_vectors([query], rules, QUERY, prompt=prompt, batches=Batches())
            if of_pages:
                vectors = self._page_vectors(texts, rules, batches)
            else:
                vectors = self._token_vectors(texts, rules, DOCUMENT, batches=batches)
            scores = maxsim(query_TC, vectors, rules)
        ranked = in_order(scores, top_k)
        return [{**hit, "text": texts[hit["corpus_id"]]} for hit in ranked] if return_documents else ranked


def _documents(query: str, documents: Iterable[Any], *, pictures: bool) -> list[Any]:
    """The documents as a list. Raises PosexportError unless ``query`` is a str and documents are several."""
    if not isinstance(query, str):
        raise PosexportError(f"the query must be a str, got {query!r:.60}")
    listed, single = as_pictures(documents) if pictures else as_texts(documents)
    if single:
        what, got = ("pictures", type(documents).__name__) if pictures else ("str", "str")
        raise PosexportError(f"documents must be a list of {what}, got one {got}; give [document]")
    return listed


def _batches(title: str, batch_size: int | None, show_progress_bar: bool | None, extra: Scoring) -> Batches:
    """The batching of pairs; removes its options from ``extra``."""
    return Batches(
        batch_tokens=extra.pop("batch_tokens", BATCH_TOKENS),
        batch_size=batch_size,
        progress=with_bar(title, show=show_progress_bar, progress=extra.pop("progress", None)),
    )


def _instruction(rules: PairRules, instruction: str | None, prompt: str | None) -> str | None:
    """The instruction that replaces the template's default; None: the default, or a model without a template."""
    if rules.template is None and instruction is not None:
        raise PosexportError("this model has no template that an instruction could stand in; leave it out")
    if instruction is not None and prompt is not None:
        raise PosexportError("instruction and prompt are the same place of this model's template; give one")
    return instruction if rules.template is None or prompt is None else prompt
