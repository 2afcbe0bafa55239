"""The three graphs of a model of images and text, called as a client calls them, against transformers' own model.

Shape letters: B batch, T tokens, C model size.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.through import attention, vision, vision_agreement

#: of the largest logit: what the graphs may differ by
ROUNDING = 5e-5
#: decode steps behind the image and its words
_STEPS = 4


def difference(source: Path, bundle: Path, kind: Any) -> float:
    """The largest difference of logits over their scale: a row is an image between words, then tokens one by one.

    ``kind``: the class of transformers. Its model computes in float64, with all tokens in one call.
    """
    model = kind.from_pretrained(source).eval()
    attention.use(model, attention="eager", experts="eager")
    tower = vision.TOWERS[model.config.model_type](Config(Directory(source), "config.json"), model)
    ids_BT, images = vision_agreement.sample(model, tower)
    more = torch.randint(8, 64, (len(ids_BT), _STEPS), generator=torch.Generator().manual_seed(1))
    ids_BT = torch.cat((ids_BT, more), 1)
    image_BT = ids_BT == getattr(model.config, tower.token)
    want = vision_agreement.reference_logits(model, ids_BT, {**images, **tower.model_inputs(image_BT)}).numpy()
    given = {name: x.numpy() for name, x in tower.decoder_inputs(image_BT, images).items()}
    got = _logits(bundle, tower, ids_BT.numpy(), image_BT.numpy(), images, given)
    return float(np.abs(got - want).max() / np.abs(want).max())


def _logits(bundle: Path, tower: Any, ids_BT: Any, image_BT: Any, images: Any, given: dict[str, Any]) -> Any:
    """[B, T, V]: everything but the last tokens in one call, these one by one."""
    files = (tower.file, vision.EMBED_FILE, vision.DECODER_FILE)
    see, embed, decoder = (onnxruntime.InferenceSession(bundle / name) for name in files)
    names = {tower.graph_names.get(spec.name, spec.name): spec.name for spec in tower.inputs}
    (features,) = see.run(None, {name: images[given_as].numpy() for name, given_as in names.items()})
    features = tower.placed(torch.from_numpy(features), images).numpy()
    embeds_BTC, *more = embed.run(None, {"input_ids": ids_BT})
    embedded = dict(zip(tower.embed.names[1:], more, strict=True))
    embeds_BTC[image_BT] = features.reshape(-1, features.shape[-1])
    past = {
        value.name: np.zeros(
            [size if isinstance(size, int) else {"batch_size": len(ids_BT)}.get(size, 0) for size in value.shape],
            np.float32,
        )
        for value in decoder.get_inputs()
        if value.name.startswith("past_")
    }
    length, parts = ids_BT.shape[1], []
    own = {value.name for value in decoder.get_inputs()}
    given = {"position_ids": np.broadcast_to(np.arange(length), ids_BT.shape), **given}
    for start, end in [(0, length - _STEPS), *((at, at + 1) for at in range(length - _STEPS, length))]:
        feeds = {"inputs_embeds": embeds_BTC[:, start:end], "attention_mask": np.ones((len(ids_BT), end), np.int64)}
        feeds |= {name: np.ascontiguousarray(x[:, start:end]) for name, x in embedded.items()}
        feeds |= {name: np.ascontiguousarray(x[..., start:end]) for name, x in given.items() if name in own}
        logits, *present = decoder.run(None, {**feeds, **past})
        past = dict(zip(past, present, strict=True))
        parts.append(logits)
    return np.concatenate(parts, 1)
