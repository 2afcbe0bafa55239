"""Compares the three graphs of a vision-language model with transformers' model: logits for an image, and features.

Shape letters: B batch, T tokens, C model size, V vocabulary.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posexport.checkpoints.config import Config
from posexport.errors import PosexportError
from posexport.modules.decoder_facts import small
from posexport.modules.in_parts import differ
from posexport.proof.reduced.reduction import kept_of, leave_out_layers
from posexport.sources.lazy_parameters import materialize
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.through.towers import ROWS, Images, Tower

#: text tokens after the image in the example
_AFTER = 6


def difference(definition: Any, original: Any, kind: type[Tower], config: Config) -> str:
    """What the parts of ``definition`` (`posexport.through.vision.ThroughVision`) compute otherwise than ``original``.

    Empty: nothing. Of a large model a few layers are compared; all where these differ, or where its code needs all of
    them.
    """
    if small(original):
        wide = copy.deepcopy(definition)
        in_precision(wide, torch.float64)
        return _different(wide, original, torch.float64, kind(config, original).eval())
    try:
        few = _few_layers(definition, original)
        if few is not None and not _different(*few, torch.float32, kind(config, few[1]).eval()):
            return ""
    except (ArithmeticError, AttributeError, LookupError, PosexportError, RuntimeError, TypeError, ValueError):
        pass
    for module in (definition, original):
        materialize(module.parameters())
    return _different(definition, original, torch.float32, kind(config, original).eval())


def _few_layers(definition: Any, original: nn.Module) -> tuple[Any, nn.Module] | None:
    """Copies with the same few layers, whose parameters have values; None where that cannot be.

    Raises:
        NotComparableError: parts are made for the number of layers.
    """
    few = copy_with_same_weights(definition), copy_with_same_weights(original)
    stacks = leave_out_layers(few[0])
    if isinstance(stacks, str) or isinstance(leave_out_layers(few[1], like=kept_of(few[0], stacks)), str):
        return None
    for module in few:
        materialize(module.parameters())
    few[0].reduced_to(definition.vocab)
    return few


def _different(definition: Any, original: Any, dtype: torch.dtype, tower: Tower) -> str:
    """The first that differs, of the logits for an image and the features of several; ``tower``: the original's."""
    ids_BT, images = sample(original, tower)
    image_BT = ids_BT == getattr(original.config, tower.token)
    more = tower.more_images(torch.Generator().manual_seed(1))
    features = _reference_features(original, more)
    reference = reference_logits(original, ids_BT, {**images, **tower.model_inputs(image_BT)})
    decoder_inputs = tower.decoder_inputs(image_BT, images)
    logits = _logits_in_two_calls(definition, tower, ids_BT, image_BT, _cast(images, dtype), decoder_inputs)
    pairs = [("logits for an image", logits, reference)]
    with torch.no_grad():
        for expected in features:
            actual = tower.unpadded(_features(definition, _cast(more, dtype)), more)
            pairs.append(("features for several images", actual, expected))
    for what, actual, expected in pairs:
        # eager attention computes its softmax in float32 in any precision
        if differ(actual, expected, torch.ones(expected.shape[:-1]), torch.float32):
            return what
    return ""


def sample(model: Any, tower: Tower) -> tuple[Tensor, Images]:
    """Token ids with one image per row between text tokens, and the images."""
    random = torch.Generator().manual_seed(0)
    images = tower.example(random)
    with torch.no_grad():
        features = tower.tokens_per_image(images)
    settings, image = model.config.get_text_config(), getattr(model.config, tower.token)
    text_BT = torch.randint(1, settings.vocab_size - 1, (ROWS, 2 + _AFTER), generator=random)
    text_BT = torch.where(text_BT == image, image - 1 if image else 1, text_BT)
    return torch.cat((text_BT[:, :2], torch.full((ROWS, features), image), text_BT[:, 2:]), 1), images


def _cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}


def reference_logits(model: Any, ids_BT: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The logits of transformers' forward, in float64 if memory allows a copy."""
    reference, dtype = model, torch.float32
    if small(model):
        reference, dtype = in_precision(copy.deepcopy(model), torch.float64), torch.float64
    with torch.no_grad():
        logits: Tensor = reference(
            input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), **_cast(inputs, dtype), return_dict=True
        ).logits
    return logits


def _reference_features(model: Any, images: Images) -> list[Tensor]:
    """The features that transformers computes for ``images``; empty without images."""
    if not images:
        return []
    with torch.no_grad():
        return [torch.cat(list(model.get_image_features(**images, return_dict=True).pooler_output))]


def _features(definition: Any, images: Images) -> Tensor:
    features: Tensor
    (features,) = definition.vision(**{spec.name: images[spec.name] for spec in definition.vision.inputs})
    return features


def _logits_in_two_calls(
    definition: Any,
    tower: Tower,
    ids_BT: Tensor,
    image_BT: Tensor,
    images: Images,
    inputs: Mapping[str, Tensor],
) -> Tensor:
    """The logits of the parts, chained as a client does: a prefill of all but the last token, then a decode step.

    ``inputs``: further decoder inputs (`Tower.decoder_inputs`).
    """
    with torch.no_grad():
        embeds_BTC, *more = definition.embed(ids_BT)
        features = tower.placed(_features(definition, images), images)
        embeds_BTC = embeds_BTC.masked_scatter(image_BT[..., None], features)
        made = dict(zip(definition.embed.names[1:], more, strict=True))
        cut, mask_BT = ids_BT.shape[1] - 1, torch.ones_like(ids_BT)
        first = definition.decoder(
            embeds_BTC[:, :cut],
            mask_BT[:, :cut],
            **{name: x[..., :cut] for name, x in inputs.items()},
            **{name: x[:, :cut] for name, x in made.items()},
        )
        last = definition.decoder(
            embeds_BTC[:, cut:],
            mask_BT,
            first[1:],
            **{name: x[..., cut:] for name, x in inputs.items()},
            **{name: x[:, cut:] for name, x in made.items()},
        )
    return torch.cat((first[0], last[0]), 1)
