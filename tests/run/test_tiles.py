"""Pictures as tiles: the text around tiles and the features of a prompt, as transformers writes and packs them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from posexport.base.text_rules import AnyResRules
from posexport.run.tiles import best_size, packed, written
from posexport.through.picture_rules import tile_rules
from tests.tolerances import agree

transformers: Any = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

#: pixels of a tile, and heights and widths that pictures may get
EDGE, SIZES = 12, [(12, 12), (24, 12), (24, 24), (12, 36), (24, 48), (36, 24), (60, 60)]
#: of square, long, tall, tiny and large pictures; one whose unpadded edge is odd, and one that loses nothing
PICTURES = [(12, 12), (7, 50), (60, 9), (5, 3), (100, 130), (33, 17), (24, 48), (1, 90), (59, 61)]


@pytest.mark.parametrize("kind", ["llava_next", "llava_onevision"])
@pytest.mark.parametrize("side", [3, 4])
def test_features_are_packed_as_by_transformers(kind: str, side: int) -> None:
    """``pack_image_features`` of the model's class, which reads only the configuration."""
    from transformers.models.llava_next.modeling_llava_next import LlavaNextModel
    from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionModel

    vision = SimpleNamespace(image_size=EDGE, patch_size=EDGE // side)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=[*map(list, SIZES)]))
    random, lengths = np.random.default_rng(0), set()
    for most in [2, 9] if kind == "llava_onevision" else [None]:
        rules = AnyResRules(sizes=SIZES, tile_size=EDGE, most_tiles=most)
        for picture in PICTURES:
            grid = [size // EDGE for size in best_size(picture, SIZES)]
            for tiles in (grid[0] * grid[1] + 1, 1):
                features = random.normal(size=(tiles, side**2 + 1, 5)).astype(np.float32)
                features[:, -1] = features[0, -1]
                given = [torch.from_numpy(features[:, :-1])], torch.tensor([picture])
                newline = torch.from_numpy(features[0, -1])
                if kind == "llava_next":
                    (wanted,), _ = LlavaNextModel.pack_image_features(model, *given, "default", newline)
                else:
                    (wanted,), _ = LlavaOnevisionModel.pack_image_features(model, *given, newline, f"anyres_max_{most}")
                # tiles that fill a row up beside a picture with more of them
                filled = np.pad(features, ((0, 2 if tiles > 1 else 0), (0, 0), (0, 0)), constant_values=7)
                agree(packed(filled, picture, rules), wanted.numpy(), "another library", np.float32)
                lengths.add(len(wanted))
    assert len(lengths) > len(PICTURES) // 2


@pytest.mark.parametrize("grid", [(0, 0), (1, 2), (3, 1), (2, 4)])
def test_tiles_are_written_as_by_transformers(grid: tuple[int, int]) -> None:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    own = {"fake_image_token": "<f>", "global_image_tag": "<g>", "image_token": "<i>", "image_seq_len": 3}
    given = {"rows": [[grid[0]]], "cols": [[grid[1]]]}
    text = written(tile_rules("<f>", "<g>"), "<i>" * 3, grid)
    assert text == Idefics3Processor.replace_image_token(SimpleNamespace(**own), given, 0)
    assert text == get_image_prompt_string(*grid, 3, "<f>", "<i>", "<g>")
