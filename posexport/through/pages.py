"""Models that retrieve page images (ColPali, arXiv:2407.01449) as two graphs.

``vision_encoder.onnx`` maps a page image to features. ``language_model.onnx`` maps token ids to one embedding per
token; the features of a page replace the embeddings of its image tokens. A query has no features.

Shape letters: B batch, N patches of a page, T tokens, P features of a page, C model size.
"""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, IMAGES, PATCHES, InputSpec, OutputSpec, PartSpec, Promises
from posexport.base.tasks.task import Task
from posexport.checkpoints.config import Config
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.models.definition import Part
from posexport.modules.decoder_facts import small
from posexport.modules.in_parts import differ
from posexport.modules.user_module import UserModule, by_name
from posexport.sources.source import Model
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.through import attention
from posexport.through.agreement import use_posexport_attention
from posexport.through.grids import GRIDS, NUMBER, Grids, Patches
from posexport.through.inputs import IDS, MASK, PIXELS, TYPES, text_inputs
from posexport.through.module import TransformersModule, checkpoint_source
from posexport.through.page_rules import page_rules
from posexport.through.towers import FEATURES, Features, Images, Sizes, Tower

VISION, LANGUAGE = "vision_encoder.onnx", "language_model.onnx"
EMBEDDINGS = "embeddings"
#: number of image tokens of a row, in the traced example and in the proof
_TRACED, _PROVEN = 6, (4, 1, 9, 15, 300)
#: rows and columns of the example's pages, counted in image tokens
_PAGES = ((2, 3), (2, 1))
#: number of text tokens before and after a page in the example
_BEFORE, _AFTER = 2, 4


class Pictures(Features):
    """PaliGemma's vision tower on page images of one size: [B, 3, H, W] to features [B, P, C].

    transformers' processor gives all tokens one token type: they are a prefix, and attention in it is bidirectional.
    """

    prefix, causal = True, False

    def tokens(self, images: Images) -> list[int]:
        """The number of image tokens of each page."""
        pixels_B3HW = images[PIXELS]
        return [self.tokens_per_image({PIXELS: pixels_B3HW})] * len(pixels_B3HW)

    def features_of_one(self, images: Images) -> int | None:
        """The number of features of every picture or tile; None: pictures have several sizes."""
        return self.tokens(images)[0]


class Rows(Grids):
    """Qwen2-VL's vision tower on pages of any size: patches [B, N, D] and grids [B, 3] to features [B, P, C].

    Each row of the batch holds one page. Its patches come first and padding follows, as in ``ColQwen2Processor``.
    """

    prefix, causal = False, True

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        token = self._side**2
        self.sizes = Sizes([{PATCHES: n * token} for n in _PROVEN], {PATCHES: _TRACED * token}, {PATCHES: token})

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        patches, grids = super().input_specs(config, model)
        return [
            msgspec.structs.replace(patches, axes=[BATCH, *patches.axes]),
            msgspec.structs.replace(grids, axes=[BATCH, *grids.axes[1:]]),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [OutputSpec(name=FEATURES, axes=[BATCH, NUMBER, self.width])]

    def example(self, random: torch.Generator) -> Images:
        grids_B3 = torch.tensor([(1, *sides) for sides in _PAGES]) * torch.tensor([1, self._side, self._side])
        *_, width = (axis for axis in self.inputs[0].axes if isinstance(axis, int))
        pixels_BND = torch.randn(len(_PAGES), int(grids_B3.prod(1).max()), width, generator=random)
        return {PIXELS: pixels_BND, GRIDS: grids_B3}

    def tokens(self, images: Images) -> list[int]:
        """The number of image tokens of each page."""
        return [int(patches) // self._side**2 for patches in images[GRIDS].prod(1)]

    def features_of_one(self, images: Images) -> int | None:
        """None: pages have several sizes."""
        del images
        return None

    def attention_replaced(self) -> None:
        attention.use(self.visual, attention=attention.ROWS)

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        rows, length = pixel_values.shape[:2]
        patches = Patches(image_grid_thw, rows * length, self._side, row=length)
        features_KC: Tensor = self.visual(
            pixel_values.flatten(0, 1),
            grid_thw=image_grid_thw,
            position_ids=patches.places_N2,
            cu_seqlens=patches.real_N.view(rows, length),
            max_seqlen=1,
        ).pooler_output
        return features_KC.view(rows, -1, features_KC.shape[-1])


class Tiles(Tower):
    """ModernVBERT's vision tower on the tiles of pages: [B, N, 3, H, W] to features [B, N * P, C].

    Rows are padded with tiles of zeros. The features of these tiles follow the features of the page, and no image
    token uses them.
    """

    prefix, causal = False, False
    multiple_images = True
    sizes = Sizes(({IMAGES: 2}, {IMAGES: 1}, {IMAGES: 3}))

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.vision, self.connector = model.vision_model, model.connector

    @property
    def outputs(self) -> list[OutputSpec]:
        with torch.no_grad():
            features = self(**self.example(torch.Generator()))
        return [OutputSpec(name=FEATURES, axes=[BATCH, NUMBER, features.shape[-1]])]

    def example(self, random: torch.Generator) -> Images:
        pixels_1 = super().example(random)[PIXELS]
        pixels_BN3HW = torch.cat((pixels_1, torch.randn(pixels_1.shape, generator=random)), 1)
        pixels_BN3HW[1, 1] = 0
        return {PIXELS: pixels_BN3HW}

    def tokens(self, images: Images) -> list[int]:
        """The number of image tokens of each page."""
        tokens_per_tile = self.features_of_one(images)
        return [tokens_per_tile * int(tiles) for tiles in images[PIXELS].flatten(2).any(-1).sum(1)]

    def features_of_one(self, images: Images) -> int:
        """The number of features of a tile."""
        return self.tokens_per_image({PIXELS: images[PIXELS][:, :1]})

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.vision(pixel_values=pixel_values.flatten(0, 1), return_dict=True).last_hidden_state
        features: Tensor = self.connector(states).unflatten(0, pixel_values.shape[:2])
        return features.flatten(1, 2)


#: (model_type, model_type of its vision-language model) -> vision tower
KINDS: Mapping[tuple[str, str], type[Pictures | Rows | Tiles]] = {
    ("colmodernvbert", "modernvbert"): Tiles,
    ("colpali", "paligemma"): Pictures,
    ("colqwen2", "qwen2_vl"): Rows,
}


class PageText(TransformersModule):
    """Maps token ids, and the features of a page, to one embedding per token.

    The features replace the embeddings of the row's image tokens, in order. An image token for which there is no
    feature keeps its token embedding: in a query, every image token does.
    """

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        ids_BT, features_BPC = tensors.pop(IDS), tensors.pop(FEATURES, None)
        image = self.model.config.vlm_config.image_token_id
        image_BT, embed = ids_BT == image, self.model.get_input_embeddings()
        # an image token beyond the embedding table has the first row of it, as in transformers
        x_BTC = embed(ids_BT if image < embed.num_embeddings else ids_BT.masked_fill(image_BT, 0))
        if features_BPC is not None:
            x_BTC = placed(x_BTC, image_BT, features_BPC)
        return super().forward(inputs_embeds=x_BTC, **tensors)


def placed(x_BTC: Tensor, image_BT: Tensor, features_BPC: Tensor) -> Tensor:
    """Replaces the vectors of ``x_BTC`` at the tokens ``image_BT`` by the features of the same row, in order.

    Tokens beyond the P features keep their vectors; P may be 0. ``masked_scatter`` would read the features of all
    rows as one list, and mix up rows with different numbers of image tokens.
    """
    rows, features = features_BPC.shape[:2]
    number_BT = image_BT.long().cumsum(1)
    here_BT = image_BT & (number_BT <= features)
    # index 0 is a vector of zeros, so that the table is never empty
    table_BSC = torch.cat((x_BTC.new_zeros(rows, 1, x_BTC.shape[-1]), features_BPC), 1)
    index_BT = number_BT.where(here_BT, 0) + torch.arange(rows, device=x_BTC.device)[:, None] * (features + 1)
    return table_BSC.flatten(0, 1)[index_BT].where(here_BT[..., None], x_BTC)


class Page(nn.Module):
    """The vision tower followed by the language model: the reference of both graphs together."""

    def __init__(self, tower: Tower, text: PageText) -> None:
        super().__init__()
        self.tower, self.text = tower, text

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        features = self.tower(**{spec.name: tensors.pop(spec.name) for spec in self.tower.inputs})
        return {**self.text(**tensors, **{FEATURES: features}), FEATURES: features}


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """Split the ``model`` of a checkpoint into two graphs, and read the text rules of its processor.

    Raises:
        PosexportError: its vision-language model is not supported, or the embeddings of the two graphs differ from
            the model's.
    """
    config, vlm = checkpoint.config, model.config.vlm_config
    label, name = config.label, str(checkpoint.files.path)
    if (over := (config.text("model_type"), vlm.model_type)) not in KINDS:
        raise PosexportError(
            f"{label} says model_type = {over[0]} and vlm_config.model_type = {over[1]}; of models of pages "
            f"{' and '.join(f'{kind} over {inner}' for kind, inner in KINDS)} are converted"
        )
    # reference: transformers' forward, before anything in the model is replaced
    vlm.use_cache = vlm.get_text_config().use_cache = False
    attention.use(model, attention="eager")
    tower = KINDS[over](config, model.vlm).eval()
    sample = _sample(model, tower)
    types = {TYPES: torch.zeros_like(sample[IDS])} if tower.prefix else {}
    expected = _embeddings(model, {**sample, **types})
    if tower.prefix:  # the graph has no token types, which are the same for every token
        _attend_to_all(vlm.get_text_config())
    # a query, without a page
    inputs = [_with_placeholder(spec, vlm.image_token_id) for spec in text_inputs(model, {IDS, MASK})]
    text = PageText(model, (EMBEDDINGS,), inputs, with_positions=False).eval()
    remarks = use_posexport_attention(label, text)
    tower.attention_replaced()
    # with a page
    whole = Page(tower, text).eval()
    if differ(_embeddings(whole, sample), expected, sample[MASK], torch.float32):
        raise PosexportError(
            f"{label}: {over[0]} gives other embeddings of a page than its parts do; it is not converted "
            "through transformers"
        )
    source = checkpoint_source(checkpoint, text, task.name, remarks)
    (features,) = tower.outputs
    # any number of features: a query has none
    features_input = InputSpec(name=FEATURES, dtype="float32", axes=[BATCH, NUMBER, features.axes[-1]], role="values")
    all_inputs, outputs = [*inputs, *tower.inputs], [*source.outputs, features]
    vision = by_name(name, _Named(tower).eval(), tower.inputs, [features])
    language = by_name(name, text, [*inputs, features_input], source.outputs)
    stated = tower.features_of_one(sample)
    rules, on_rules = page_rules(checkpoint, vlm.image_token_id, stated)
    limits = msgspec.structs.replace(
        source.limits,
        size_steps=dict(tower.sizes.steps),
        proof_sizes=list(tower.sizes.proven),
        trace_sizes={**source.limits.trace_sizes, **tower.sizes.traced},
    )
    return msgspec.structs.replace(
        source,
        module=by_name(name, whole, all_inputs, outputs),
        inputs=all_inputs,
        outputs=outputs,
        limits=limits,
        promises=Promises(shift_invariant=True, padding_invariant=True, positional=True, causal=tower.causal),
        parts=[_graph(VISION, vision), _graph(LANGUAGE, language)],
        text_rules=rules,
        remarks=[*source.remarks, *on_rules],
    )


def _attend_to_all(settings: Any) -> None:
    """Make the attention of a decoder with the configuration ``settings`` bidirectional, without a sliding window."""
    settings.is_causal = False
    if getattr(settings, "sliding_window", None) is not None:
        settings.sliding_window = None


class _Named(nn.Module):
    """Wraps a vision tower so that it returns its features by name."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, **images: Tensor) -> dict[str, Tensor]:
        return {self.tower.features: self.tower(**images)}


def _graph(file: str, module: UserModule) -> Part:
    inputs, outputs = list(module.inputs), list(module.outputs)
    names = [{spec.name: spec.name for spec in specs} for specs in (inputs, outputs)]
    return Part(
        PartSpec(file=file, inputs=inputs, outputs=outputs, input_names=names[0], output_names=names[1]), module
    )


def _with_placeholder(spec: InputSpec, image: int) -> InputSpec:
    """The specification of the ids, with the image token allowed: PaliGemma's embedding table may lack it."""
    if spec.name != IDS:
        return spec
    return msgspec.structs.replace(spec, size=max(spec.size or 0, image + 1), placeholder=image)


def _sample(model: Any, tower: Pictures | Rows | Tiles) -> dict[str, Tensor]:
    """A batch of two pages between text tokens; the shorter row is padded on the left."""
    random = torch.Generator().manual_seed(0)
    images = tower.example(random)
    settings, image = model.config.get_text_config(), model.config.vlm_config.image_token_id
    padding = settings.pad_token_id or 0
    rows = []
    for count in tower.tokens(images):
        text_T = torch.randint(0, settings.vocab_size - 1, (_BEFORE + _AFTER,), generator=random)
        text_T = text_T + (text_T >= image).long()
        rows.append(torch.cat((text_T[:_BEFORE], torch.full((count,), image), text_T[_BEFORE:])))
    rows[1] = rows[1][: len(rows[1]) - 1]
    length = max(map(len, rows))
    ids_BT = torch.stack([torch.cat((torch.full((length - len(row),), padding), row)) for row in rows])
    mask_BT = torch.stack([(torch.arange(length) >= length - len(row)).long() for row in rows])
    return {IDS: ids_BT, MASK: mask_BT, **images}


def _embeddings(module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """The embeddings of one call, computed in float64 if memory allows a copy of ``module``."""
    dtype = torch.float64 if small(module) else torch.float32
    if dtype is torch.float64:
        module = in_precision(copy.deepcopy(module), dtype)
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    with torch.no_grad(), computing_in(dtype):
        embeddings: Tensor = module(**inputs)[EMBEDDINGS]
    return embeddings
