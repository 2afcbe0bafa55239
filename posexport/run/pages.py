"""Vectors of queries and pages by models that find pages by their pictures (ColPali, arXiv:2407.01449).

A page is a text with an image token for each feature of its picture. A text alone has no features, so that the vision
encoder does not run.

Shape letters: B rows, T tokens, P features of a page, C channels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.several import several
from posexport.base.spec import BATCH, InputSpec, PageRules, TextRules
from posexport.base.targets.dtypes import BY_NAME
from posexport.errors import PosexportError
from posexport.run.batches import Batches, Floats
from posexport.run.call_forms import OpenBundle
from posexport.run.late_interaction import QUERY, TokenizedText, of_rows
from posexport.run.texts import Texts, check_texts
from posexport.run.tiles import TILES, written

EMBEDDINGS, FEATURES, PIXELS = "embeddings", "image_features", "pixel_values"


def query_vectors(
    bundle: OpenBundle,
    tokenizer: Texts,
    texts: Sequence[str],
    rules: TextRules,
    *,
    prompt: str | None,
    batches: Batches,
) -> list[Floats]:
    """The vectors of each query, [tokens, channels]; ``prompt`` replaces the prompt of queries."""
    assert rules.tokens is not None
    assert rules.tokens.pages is not None
    check_texts(texts, "text")
    pages = rules.tokens.pages
    if odd := [number for number, text in enumerate(texts) if pages.image_token in text]:
        raise PosexportError(
            f"text {odd[0]} ({texts[odd[0]]!r:.60}) holds {pages.image_token}, which stands for features of a picture; "
            "a query has none: leave it out"
        )
    start = pages.query_start + (rules.prompts.get(QUERY, "") if prompt is None else prompt)
    rows = [_row(tokenizer, f"{start}{text}{pages.query_end}", pages) for text in texts]
    taken = next(spec for part in bundle.manifest.parts for spec in part.inputs if spec.name == FEATURES)
    width, dtype = taken.axes[-1], BY_NAME[taken.dtype].numpy

    def run(tokens: Mapping[str, NDArray[np.int64]]) -> Floats:
        none_B0C = np.zeros((len(next(iter(tokens.values()))), 0, int(width)), dtype)
        return bundle.run({**tokens, FEATURES: none_B0C}, outputs=[EMBEDDINGS])[EMBEDDINGS]

    return of_rows(run, tokenizer, rows, batches)


def page_vectors(
    bundle: OpenBundle, tokenizer: Texts, pictures: Sequence[Any], pages: PageRules, batches: Batches
) -> list[Floats]:
    """The vectors of each page, [tokens, channels]; as many pictures as `Batches.batch_size` says (1) share a call."""
    if tokenizer.token_id(pages.image_token) is None:
        raise PosexportError(
            f"the tokenizer has no token {pages.image_token!r}, in whose place this model puts features; convert it "
            "again with the tokenizer.json that belongs to it"
        )
    vectors: list[Floats] = []
    size = batches.batch_size or 1
    for start in range(0, len(pictures), size):
        images = bundle.prepare(images=list(pictures[start : start + size]), all_arrays=True)
        read = {spec.name: images[spec.name] for spec in bundle.inputs if spec.name in images}
        features_BPC = bundle.run(read, outputs=[FEATURES])[FEATURES]
        texts = _pictures(bundle.inputs, images, features_BPC, pages)
        rows = [_row(tokenizer, f"{pages.page_start}{text}{pages.page_end}", pages) for text in texts]
        tokens = {**tokenizer.padded(rows), FEATURES: features_BPC}
        for row, vectors_TC in zip(rows, bundle.run(tokens, outputs=[EMBEDDINGS])[EMBEDDINGS], strict=True):
            first = tokenizer.start(len(vectors_TC), len(row.ids))
            vectors.append(vectors_TC[first : first + len(row.ids)])
        if batches.progress is not None:
            batches.progress(len(vectors), len(pictures), "pages")
    return vectors


def as_pictures(images: Any) -> tuple[list[Any], bool]:
    """A list of pictures, and whether ``images`` is a single one: no list or iterator, and no array of several."""
    listed = list(images) if isinstance(images, np.ndarray) and images.ndim > 3 else several(images)
    return ([images], True) if listed is None else (listed, False)


def _row(tokenizer: Texts, text: str, pages: PageRules) -> TokenizedText:
    ids = tokenizer.prompts([text])[0] if pages.special_tokens else tokenizer.pieces(text)
    return TokenizedText(ids=ids, type_ids=[0] * len(ids), attention_mask=[1] * len(ids), counts=[True] * len(ids))


def _pictures(
    inputs: Sequence[InputSpec], images: Mapping[str, NDArray[Any]], features_BPC: Floats, pages: PageRules
) -> list[str]:
    """The image tokens of each page: as many as its row has features, or its patches make, or those of its tiles."""
    token, count = pages.image_token, features_BPC.shape[1]
    if pages.tiles is not None:
        of_tile = token * (count // images[PIXELS].shape[1])
        return [written(pages.tiles, of_tile, grid) for grid in images[TILES]]
    grids = next((spec for spec in inputs if spec.role == "grids" and BATCH in spec.axes), None)
    if grids is None:
        return [token * count] * len(features_BPC)
    return [token * (int(patches) // (grids.size or 1) ** 2) for patches in images[grids.name].prod(1)]
