"""Models that find pages by their pictures (ColPali, arXiv:2407.01449) as two graphs.

``vision_encoder.onnx``: a page's picture to features. ``language_model.onnx``: token ids, with the features in the
place of image tokens, to a vector for each token; a text alone has no features.

Shape letters: B batch, N patches of a page, T tokens, P features of a page, C model size.
"""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.checkpoints.config import Config
from posexport.checkpoints.opened import Checkpoint
from posexport.definition.definition import Part
from posexport.errors import PosexportError
from posexport.modules.decoder_facts import small
from posexport.modules.in_parts import differ
from posexport.modules.user_module import UserModule, by_name
from posexport.sources.source import Model
from posexport.spec import BATCH, IMAGES, PATCHES, InputSpec, OutputSpec, PartSpec, Promises
from posexport.tasks.task import Task
from posexport.through import attention
from posexport.through.agreement import use_posexport_attention
from posexport.through.grids import GRIDS, NUMBER, Grids, Patches
from posexport.through.inputs import IDS, MASK, PIXELS, TYPES, text_inputs
from posexport.through.module import TransformersModule, checkpoint_source
from posexport.through.page_rules import page_rules
from posexport.through.towers import FEATURES, Features, Images, Sizes, Tower
from posexport.torch_fixes.default_dtype import computing_in
from posexport.torch_fixes.module_precision import in_precision

VISION, LANGUAGE = "vision_encoder.onnx", "language_model.onnx"
EMBEDDINGS = "embeddings"
#: patches of a row in tokens, that the graph is traced and proven with
_TRACED, _PROVEN = 6, (4, 1, 9, 15, 300)
#: rows and columns of the example's pages in tokens
_PAGES = ((2, 3), (2, 1))
#: a text in the example: tokens before and after a page
_BEFORE, _AFTER = 2, 4


class Pictures(Features):
    """PaliGemma's tower on pages, pictures of one size: [B, 3, H, W] to features [B, P, C].

    transformers' processor gives texts of a single type, a prefix whose tokens attend to one another.
    """

    prefix, causal = True, False

    def tokens(self, images: Images) -> list[int]:
        """How many image tokens each page has."""
        pixels_B3HW = images[PIXELS]
        return [self.tokens_per_image({PIXELS: pixels_B3HW})] * len(pixels_B3HW)


class Rows(Grids):
    """Qwen2-VL's tower on pages of any size, one a row: patches [B, N, D] and grids [B, 3] to features [B, P, C].

    A page has the first patches of its row, as ``ColQwen2Processor`` gives them.
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
        """How many image tokens each page has."""
        return [int(patches) // self._side**2 for patches in images[GRIDS].prod(1)]

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
    """ModernVBERT's tower on tiles of pages, [B, N, 3, H, W], to features [B, N * P, C].

    Tiles of zeros, with which rows are filled up, have features too, behind those that a page has tokens for.
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
        """How many image tokens each page has."""
        each = self.tokens_per_image({PIXELS: images[PIXELS][:, :1]})
        return [each * int(tiles) for tiles in images[PIXELS].flatten(2).any(-1).sum(1)]

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.vision(pixel_values=pixel_values.flatten(0, 1), return_dict=True).last_hidden_state
        features: Tensor = self.connector(states).unflatten(0, pixel_values.shape[:2])
        return features.flatten(1, 2)


#: type and type of its vision-language model -> the tower
KINDS: Mapping[tuple[str, str], type[Pictures | Rows | Tiles]] = {
    ("colmodernvbert", "modernvbert"): Tiles,
    ("colpali", "paligemma"): Pictures,
    ("colqwen2", "qwen2_vl"): Rows,
}


class PageText(TransformersModule):
    """Token ids, with the features of a page in the place of its image tokens, to a vector for each token.

    The first image token of a row has the row's first feature, and so on; image tokens beyond the features, as in a
    text alone, have their own embedding.
    """

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        ids_BT, features_BPC = tensors.pop(IDS), tensors.pop(FEATURES, None)
        image = self.model.config.vlm_config.image_token_id
        image_BT, embed = ids_BT == image, self.model.get_input_embeddings()
        # transformers gives an image token without a row in the table the first one
        x_BTC = embed(ids_BT if image < embed.num_embeddings else ids_BT.masked_fill(image_BT, 0))
        if features_BPC is not None:
            x_BTC = placed(x_BTC, image_BT, features_BPC)
        return super().forward(inputs_embeds=x_BTC, **tensors)


def placed(x_BTC: Tensor, image_BT: Tensor, features_BPC: Tensor) -> Tensor:
    """``x_BTC`` with the features of each row, which may be none, at its tokens ``image_BT``, as far as there are some.

    As ``masked_scatter``, which a graph would compute over all rows at once.
    """
    rows, each = features_BPC.shape[:2]
    number_BT = image_BT.long().cumsum(1)
    here_BT = image_BT & (number_BT <= each)
    # a row of zeros before the features, so that there always is one to take
    table_BSC = torch.cat((x_BTC.new_zeros(rows, 1, x_BTC.shape[-1]), features_BPC), 1)
    index_BT = number_BT.where(here_BT, 0) + torch.arange(rows, device=x_BTC.device)[:, None] * (each + 1)
    return table_BSC.flatten(0, 1)[index_BT].where(here_BT[..., None], x_BTC)


class Page(nn.Module):
    """Both graphs, one after the other."""

    def __init__(self, tower: Tower, text: PageText) -> None:
        super().__init__()
        self.tower, self.text = tower, text

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        features = self.tower(**{spec.name: tensors.pop(spec.name) for spec in self.tower.inputs})
        return {**self.text(**tensors, **{FEATURES: features}), FEATURES: features}


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The ``model`` of a checkpoint as two graphs, with the rules of its processor.

    Raises:
        PosexportError: its vision-language model is not supported, or the graphs give other embeddings than it.
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
    if tower.prefix:  # without token types, which say that of every token
        _attend_to_all(vlm.get_text_config())
    # a text alone
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
    # any number of features: a text alone has none
    taken = InputSpec(name=FEATURES, dtype="float32", axes=[BATCH, NUMBER, features.axes[-1]], role="values")
    given, outputs = [*inputs, *tower.inputs], [*source.outputs, features]
    vision = by_name(name, _Named(tower).eval(), tower.inputs, [features])
    language = by_name(name, text, [*inputs, taken], source.outputs)
    stated = tower.tokens(sample)[0] if isinstance(tower, Pictures) else None
    rules, on_rules = page_rules(checkpoint, vlm.image_token_id, stated)
    limits = msgspec.structs.replace(
        source.limits,
        size_steps=dict(tower.sizes.steps),
        proof_sizes=list(tower.sizes.proven),
        trace_sizes={**source.limits.trace_sizes, **tower.sizes.traced},
    )
    return msgspec.structs.replace(
        source,
        module=by_name(name, whole, given, outputs),
        inputs=given,
        outputs=outputs,
        limits=limits,
        promises=Promises(shift_invariant=True, padding_invariant=True, positional=True, causal=tower.causal),
        parts=[_part(VISION, vision), _part(LANGUAGE, language)],
        text_rules=rules,
        remarks=[*source.remarks, *on_rules],
    )


def _attend_to_all(settings: Any) -> None:
    """Make a decoder of ``settings`` read a text as one prefix, which windows do not bound."""
    settings.is_causal = False
    if getattr(settings, "sliding_window", None) is not None:
        settings.sliding_window = None


class _Named(nn.Module):
    """A tower that returns its features by name."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, **images: Tensor) -> dict[str, Tensor]:
        return {self.tower.features: self.tower(**images)}


def _part(file: str, module: UserModule) -> Part:
    inputs, outputs = list(module.inputs), list(module.outputs)
    names = [{spec.name: spec.name for spec in specs} for specs in (inputs, outputs)]
    return Part(
        PartSpec(file=file, inputs=inputs, outputs=outputs, input_names=names[0], output_names=names[1]), module
    )


def _with_placeholder(spec: InputSpec, image: int) -> InputSpec:
    """The ids with the image token among them, which PaliGemma's table may lack."""
    if spec.name != IDS:
        return spec
    return msgspec.structs.replace(spec, size=max(spec.size or 0, image + 1), placeholder=image)


def _sample(model: Any, tower: Pictures | Rows | Tiles) -> dict[str, Tensor]:
    """Two pages between text tokens, the shorter text padded on the left."""
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
    """The embeddings of a call, in float64 if memory allows a copy."""
    dtype = torch.float64 if small(module) else torch.float32
    if dtype is torch.float64:
        module = in_precision(copy.deepcopy(module), dtype)
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    with torch.no_grad(), computing_in(dtype):
        embeddings: Tensor = module(**given)[EMBEDDINGS]
    return embeddings
