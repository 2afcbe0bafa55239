"""Decoders without the causal mask: ``is_causal: false`` in config.json, so that tokens also attend to later tokens.

Embedders made from decoders set it: gte-Qwen2, and models trained by LLM2Vec (BehnamGhader et al., arXiv:2404.05961,
section 2.1). transformers reads the key since version 5.2 (``masking_utils.create_causal_mask``); a sliding window of W
tokens then extends to W tokens on either side.
"""

from dataclasses import replace

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Plan
from posexport.encodings.alibi import Alibi
from posexport.encodings.compose import ByLayer, InputAndLayers, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderModel
from posexport.models.heads import HeadedDecoder
from posexport.nn.heads import Features

KEY = "is_causal"


def as_stated(plan: Plan, config: Config, family: Family, task: str) -> Plan:
    """Removes the causal mask from a decoder's plan if config.json says so; returns other plans unchanged.

    Raises PosexportError for tasks and definitions that need the mask.
    """
    if config.values.get(KEY) is None or config.flag(KEY, True):
        return plan
    # models that have no causal mask, or need it
    model = plan.model
    if isinstance(model, HeadedDecoder) and not model.causal:
        raise PosexportError(
            f"{config.label} says {KEY} = false and use_bidirectional_attention = true, by which windows have another "
            "size in transformers than by one of them; remove the one that the model was not trained with"
        )
    if not model.causal:
        config.remark(f"says {KEY} = false, which changes nothing: {family.model_type} is an encoder")
        return plan
    if not isinstance(model, DecoderModel) or not isinstance(model.decoder, Decoder):
        raise PosexportError(
            f"{config.label} says {KEY} = false: tokens see later ones, which is not computed for "
            f"{family.model_type} here; set it to true if it was trained with a causal mask"
        )
    if model.head is not None:
        raise PosexportError(
            f"{config.label} says {KEY} = false: tokens see later ones, so nothing can be generated or read from the "
            f"next token's logits ({task}); choose --task features"
        )
    config.remark(
        f"says {KEY} = false: tokens attend to later ones too, which is computed; transformers before 5.2 ignores the "
        "key and computes a causal model"
    )
    # the same layers without the mask, for features
    decoder = model.decoder
    with torch.device("meta"):
        if decoder.encoding is not None:
            encoding = _widened(decoder.encoding, config, family)
        else:
            encoding = ByLayer(_widened(layer, config, family) for layer in decoder.encodings)
        changed = Decoder(decoder.config, encoding, causal=False)
    return replace(plan, model=HeadedDecoder(changed, Features(changed.width)))


def _widened(encoding: Encoding, config: Config, family: Family) -> Encoding:
    """The encoding without a causal mask: a window of W tokens to the left becomes W tokens on either side."""
    if isinstance(encoding, ByLayer):
        return ByLayer(_widened(layer, config, family) for layer in encoding.encodings if isinstance(layer, Encoding))
    if isinstance(encoding, RotationAndTerm) and isinstance(encoding.term, LocalWindow):
        tokens = encoding.term.left + 1
        return RotationAndTerm(encoding.rotation, LocalWindow(left=tokens, right=tokens))
    if encoding.causal or isinstance(encoding, Alibi | InputAndLayers | LocalWindow):
        raise PosexportError(
            f"{config.label} says {KEY} = false: tokens see later ones, which is not computed for the positions of "
            f"{family.model_type} ({encoding.name}); set it to true if it was trained with a causal mask"
        )
    return encoding
