"""How transformers' processor of a model of images and text writes pictures into prompts."""

from typing import Any

from posexport.base.spec import PictureRules
from posexport.base.system.user_code import is_external, raised
from posexport.checkpoints.opened import Checkpoint
from posexport.run.tokenizer import library

#: the types whose prompts with pictures `posexport.run.pictures_in_prompts` writes
KINDS = ("gemma3", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl")
#: names of a tokenizer's files; a folder without any has no tokenizer
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def picture_rules(checkpoint: Checkpoint, model: Any) -> tuple[PictureRules | None, list[str]]:
    """The rules of the folder's type and tokenizer, and remarks; None for a type that is not in `KINDS`."""
    kind, image = checkpoint.config.text("model_type"), model.config.image_token_id
    if kind not in KINDS:
        return None, []
    rules = PictureRules(feature_id=image)
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
    token, before, after = feature, "", ""
    if kind == "gemma3":  # the tokenizer names the tokens around the features; the first stands for the picture
        token, end = (getattr(tokenizer, name, None) for name in ("boi_token", "eoi_token"))
        before, after = f"\n\n{token}", f"{end}\n\n"
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
    ), []
