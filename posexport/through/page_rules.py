"""How transformers' processor of a page model (ColPali) writes queries and pages as texts."""

from typing import Any

import numpy as np

from posexport.base.spec import PageRules, TextRules, TokenRules
from posexport.base.system.user_code import is_external, raised
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.through.picture_rules import tile_rules

#: how often a processor appends its query augmentation token to a query
_AUGMENTED = 10
#: classes whose queries begin with the token that begins texts, and those whose queries do not
_WITH_BEGINNING = {"ColPaliProcessor": True, "ColQwen2Processor": False, "ColModernVBertProcessor": False}
#: the one that reads tiles, and adds the tokenizer's special tokens to its texts
_OF_TILES = "ColModernVBertProcessor"
#: a picture that every processor takes, [H, W, C]
_PICTURE = (56, 56, 3)


def page_rules(checkpoint: Checkpoint, image: int, tokens: int | None) -> tuple[TextRules | None, list[str]]:
    """The rules that the folder's processor follows; without one that is known none, and a remark.

    Args:
        checkpoint: the folder.
        image: the id of the image token in the model's configuration.
        tokens: the number of features of every picture or tile; None: pictures have several sizes.

    Raises:
        PosexportError: the processor's image tokens are not the model's.
    """
    import transformers

    folder = checkpoint.files.path / checkpoint.below
    try:
        processor = transformers.AutoProcessor.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as err:
        if is_external(err):
            raise
        return None, [
            f"the bundle takes arrays alone: transformers cannot load a processor from {folder}: {raised(err)}"
        ]
    kind = type(processor).__name__
    if kind not in _WITH_BEGINNING:
        return None, [f"the bundle takes arrays alone: texts and pictures are not prepared as {kind} of {folder} does"]
    tokenizer, of_tiles = processor.tokenizer, kind == _OF_TILES
    special = bool(tokenizer.num_special_tokens_to_add())
    if special and not of_tiles:
        return None, [f"the bundle takes arrays alone: {kind} of {folder} adds special tokens to its texts"]
    query_start = tokenizer.bos_token if _WITH_BEGINNING[kind] else ""
    if query_start is None or processor.query_augmentation_token is None:
        return None, [f"the bundle takes arrays alone: the tokenizer of {folder} has no bos_token, or no pad_token"]
    _check(processor, str(folder), image, tokens)
    if of_tiles:
        page = processor.visual_prompt_prefix
    else:
        _, (page, *_), *_ = processor.prepare_inputs_layout(images=[np.zeros(_PICTURE, np.uint8)])
    start, *end = page.split(processor.image_token)
    if len(end) != 1:
        raise PosexportError(f"{folder}: the text of a page is {page!r:.120}; it must have one {processor.image_token}")
    pages = PageRules(
        query_start=query_start,
        query_end=processor.query_augmentation_token * _AUGMENTED + ("" if of_tiles else "\n"),
        page_start=start,
        page_end=end[0],
        image_token=processor.image_token,
        special_tokens=special,
        tiles=tile_rules(processor.fake_image_token, processor.global_image_tag) if of_tiles else None,
    )
    rules = TextRules(prompts={"query": processor.query_prefix}, similarity="maxsim", tokens=TokenRules(pages=pages))
    return rules, []


def _check(processor: Any, folder: str, image: int, tokens: int | None) -> None:
    if processor.image_token_id != image:
        raise PosexportError(
            f"{folder}: the tokenizer has the id {processor.image_token_id} for {processor.image_token}, and "
            f"config.json {image}; take the tokenizer of this model"
        )
    name = "image_seq_len" if hasattr(processor, "image_seq_len") else "image_seq_length"
    stated = getattr(processor, name, None)
    if tokens not in (None, stated):
        raise PosexportError(
            f"{folder}: its processor has {name} = {stated}, and the model {tokens} features of a picture; take the "
            "processor's files of this model"
        )
