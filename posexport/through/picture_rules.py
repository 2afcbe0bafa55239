"""How transformers' processor of a model of images and text writes pictures into prompts."""

from typing import Any

from posexport.base.spec import AnyResRules, PictureRules, TileRules
from posexport.base.system.user_code import is_external, raised
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.run.images.folder import FILES, read_processor
from posexport.run.images.llava_next import LlavaNextImageProcessor
from posexport.run.tokenizer import library
from posexport.through.anyres import anyres_rules

#: the types that read tiles of a picture, by texts around them; and those that read them as one list of features
_TILES, _ANYRES = ("idefics3", "smolvlm"), ("llava_next", "llava_onevision")
#: the types whose prompts with pictures `posexport.run.pictures_in_prompts` writes
KINDS = ("gemma3", *_TILES, "llava", *_ANYRES, "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl")
#: the tokens around the features of a tile, and before those of the whole picture, where a tokenizer names no others
_AROUND_TILES = {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
#: names of a tokenizer's files; a folder without any has no tokenizer
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def picture_rules(checkpoint: Checkpoint, model: Any) -> tuple[PictureRules | None, list[str]]:
    """The rules of the folder's type and tokenizer, and remarks; None for a type that is not in `KINDS`."""
    kind = checkpoint.config.text("model_type")
    if kind not in KINDS:
        return None, []
    image = model.config.image_token_id
    rules = PictureRules(feature_id=image, anyres=_anyres(checkpoint, model) if kind in _ANYRES else None)
    if not any(name in checkpoint.bundle_files for name in _TOKENIZERS):
        return rules, []
    folder = checkpoint.files.path / checkpoint.below
    try:
        tokenizer = library.load(folder, {})
    except Exception as err:
        if is_external(err):
            raise
        return rules, [
            f"prompts with pictures are ids alone: transformers cannot load a tokenizer from {folder}: {raised(err)}"
        ]
    feature = tokenizer.convert_ids_to_tokens(image)
    token, before, after, tiles = feature, "", "", None
    if kind == "gemma3":  # the tokenizer names the tokens around the features; the first stands for the picture
        token, end = (getattr(tokenizer, name, None) for name in ("boi_token", "eoi_token"))
        before, after = f"\n\n{token}", f"{end}\n\n"
    elif kind in _TILES:
        around, whole = (getattr(tokenizer, name, None) or standard for name, standard in _AROUND_TILES.items())
        tiles = tile_rules(around, whole)
    if feature is None or token is None:
        return rules, [
            f"prompts with pictures are ids alone: the tokenizer of {folder} lacks the token {image} of pictures, or "
            "the names of the tokens around them"
        ]
    return PictureRules(
        feature_id=image,
        image_token=token,
        feature_token=feature,
        before=before,
        after=after,
        chat_start=tokenizer.bos_token or "",
        tiles=tiles,
        anyres=rules.anyres,
    ), []


def tile_rules(around: str, whole: str) -> TileRules:
    """How Idefics3's processors write pictures, by the token ``around`` the features of a tile.

    ``whole``: the token before the features of the whole picture.
    """
    return TileRules(
        before=f"{around}<row_{{row}}_col_{{column}}>",
        row_after="\n",
        after="\n",
        whole_before=f"{around}{whole}",
        whole_after=around,
    )


def _anyres(checkpoint: Checkpoint, model: Any) -> AnyResRules:
    """The rules of features of tiles, with the sizes of which the folder's image processor cuts pictures."""
    rules = anyres_rules(checkpoint.config, model)
    contents = {name: checkpoint.bundle_files[name].read_bytes() for name in FILES if name in checkpoint.bundle_files}
    try:
        processor = read_processor(contents, str(checkpoint.files.path))
    except PosexportError:  # a remark on the bundle's files says so
        return rules
    if isinstance(processor, LlavaNextImageProcessor) and list(processor.image_grid_pinpoints) != rules.sizes:
        raise PosexportError(
            f"{checkpoint.config.label} and the image processor of {checkpoint.files.path} say other "
            "image_grid_pinpoints, by which the one cuts pictures and the other reads them; make them equal"
        )
    return rules
