"""Small modules of public packages, as their authors wrote them, with random weights and an example of their inputs.

``CASES`` has them by name, each with its package and a function that makes the module and the example.
"""

import copy
import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, dict[str, Tensor]]
CASES: dict[str, tuple[str, Callable[[], Case]]] = {}
#: the axes of examples in which one size has two meanings
AXES = {
    "sam_two_way": {
        "image_embedding": ["batch_size", 40, "height", "width"],
        "image_pe": ["batch_size", 40, "height", "width"],
        "point_embedding": ["batch_size", "sequence_length", 40],
    }
}
# torchvision of PyPI is compiled with CUDA and does not load its operators without; packages import their names
_VISION = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _VISION.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def case(package: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a case of ``package`` under the function's name."""

    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[make.__name__] = (package, make)
        return make

    return add


def constructor(
    name: str, package: str, maker: str, /, **inputs: tuple[int, ...] | Callable[[], Tensor]
) -> Callable[..., None]:
    """Register a case that only calls ``maker``, ``module:name``: with the arguments of what is returned.

    ``inputs``: the example, by shapes of floats or by functions.
    """
    module, _, path = maker.partition(":")

    def add(*args: Any, **settings: Any) -> None:
        def make() -> Case:
            args_copy, settings_copy = copy.deepcopy((args, settings))
            made = attrgetter(path)(importlib.import_module(module))(*args_copy, **settings_copy)
            return made, {key: floats(*drawn) if isinstance(drawn, tuple) else drawn() for key, drawn in inputs.items()}

        CASES[name] = package, make

    return add


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def around(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """A module with this forward, which calls ``self.model``."""
    return type("Wrapped", (_Around,), {"forward": forward})(model)  # type: ignore[no-any-return]


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape)


def ids(size: int, *shape: int) -> Tensor:
    return torch.randint(4, size, shape)


@case("x-transformers")
def x_encoder() -> Case:
    from x_transformers import Encoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=90, max_seq_len=48, attn_layers=Encoder(dim=40, depth=2, heads=5, attn_dim_head=8)
    ), {"x": ids(90, 2, 17)}


@case("x-transformers")
def x_rotary_decoder() -> Case:
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=90,
        max_seq_len=48,
        attn_layers=Decoder(dim=40, depth=2, heads=5, attn_dim_head=8, rotary_pos_emb=True),
    ), {"x": ids(90, 2, 17)}


constructor("x_alibi_encoder", "x-transformers", "x_transformers:Encoder", x=(2, 17, 40))(
    dim=40, depth=2, heads=5, attn_dim_head=8, alibi_pos_bias=True, alibi_num_heads=5
)
constructor("x_t5_bias", "x-transformers", "x_transformers:Encoder", x=(2, 17, 40))(
    dim=40, depth=2, heads=5, attn_dim_head=8, rel_pos_bias=True
)
constructor("esm2", "fair-esm", "esm.model.esm2:ESM2", tokens=lambda: ids(30, 2, 17))(
    num_layers=2, embed_dim=40, attention_heads=5
)
constructor("msa_row_attention", "fair-esm", "esm.axial_attention:RowSelfAttention", x=(7, 9, 2, 40))(40, 5)
constructor("whisper_encoder", "openai-whisper", "whisper.model:AudioEncoder", x=(2, 16, 40))(
    n_mels=16, n_ctx=20, n_state=40, n_head=5, n_layer=2
)


@case("openai-whisper")
def whisper_decoder() -> Case:
    from whisper.model import TextDecoder

    decoder = TextDecoder(n_vocab=90, n_ctx=32, n_state=40, n_head=5, n_layer=2)
    nn.init.normal_(decoder.positional_embedding, std=0.3)  # allocated by torch.empty
    return decoder, {"x": ids(90, 2, 9), "xa": floats(2, 20, 40)}


constructor("clip_text", "open_clip_torch", "open_clip.transformer:TextTransformer", text=lambda: ids(90, 2, 21))(
    context_length=21, vocab_size=90, width=40, heads=5, layers=2, output_dim=24
)
constructor("clip_vision", "open_clip_torch", "open_clip.transformer:VisionTransformer", x=(2, 3, 24, 24))(
    image_size=24, patch_size=6, width=40, layers=2, heads=5, mlp_ratio=2.0, output_dim=24
)
constructor("timm_vit", "timm", "timm:create_model", x=(2, 3, 32, 32))(
    "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=40, depth=2, num_heads=5, num_classes=7
)
constructor("timm_eva_rope", "timm", "timm.models.eva:Eva", x=(2, 3, 32, 32))(
    img_size=32, patch_size=8, embed_dim=40, depth=2, num_heads=5, num_classes=7, use_rot_pos_emb=True, swiglu_mlp=True
)
constructor("timm_swin", "timm", "timm.models.swin_transformer:SwinTransformer", x=(2, 3, 32, 32))(
    img_size=32, patch_size=2, embed_dim=20, depths=(2, 2), num_heads=(2, 4), window_size=4, num_classes=7
)
constructor("timm_beit", "timm", "timm.models.beit:Beit", x=(2, 3, 32, 32))(
    img_size=32,
    patch_size=8,
    embed_dim=40,
    depth=2,
    num_heads=5,
    num_classes=7,
    use_rel_pos_bias=True,
    use_abs_pos_emb=False,
)
constructor("timm_cait", "timm", "timm.models.cait:Cait", x=(2, 3, 32, 32))(
    img_size=32, patch_size=8, embed_dim=40, depth=2, num_heads=5, num_classes=7
)
constructor("timm_maxvit", "timm", "timm:create_model", x=(2, 3, 64, 64))(
    "maxvit_nano_rw_256", img_size=64, num_classes=7
)
constructor("vit", "vit-pytorch", "vit_pytorch:ViT", img=(2, 3, 32, 32))(
    image_size=32, patch_size=8, num_classes=7, dim=40, depth=2, heads=5, dim_head=8, mlp_dim=64
)
constructor("simple_vit", "vit-pytorch", "vit_pytorch.simple_vit:SimpleViT", img=(2, 3, 32, 32))(
    image_size=32, patch_size=8, num_classes=7, dim=40, depth=2, heads=5, dim_head=8, mlp_dim=64
)
constructor("cross_vit", "vit-pytorch", "vit_pytorch.cross_vit:CrossViT", img=(2, 3, 32, 32))(
    image_size=32,
    num_classes=7,
    depth=1,
    sm_dim=24,
    sm_patch_size=8,
    sm_enc_depth=1,
    sm_enc_heads=3,
    sm_enc_mlp_dim=32,
    lg_dim=40,
    lg_patch_size=16,
    lg_enc_depth=1,
    lg_enc_heads=5,
    lg_enc_mlp_dim=48,
    cross_attn_depth=1,
    cross_attn_heads=4,
)
constructor("cct", "vit-pytorch", "vit_pytorch.cct:CCT", x=(2, 3, 32, 32))(
    img_size=(32, 32),
    embedding_dim=40,
    n_conv_layers=1,
    num_layers=2,
    num_heads=5,
    mlp_ratio=2.0,
    num_classes=7,
    positional_embedding="learnable",
)
constructor("vivit", "vit-pytorch", "vit_pytorch.vivit:ViViT", video=(2, 3, 4, 16, 16))(
    image_size=16,
    image_patch_size=8,
    frames=4,
    frame_patch_size=2,
    num_classes=7,
    dim=40,
    spatial_depth=1,
    temporal_depth=1,
    heads=5,
    dim_head=8,
    mlp_dim=64,
)
constructor("local_transformer", "local-attention", "local_attention:LocalTransformer", x=lambda: ids(90, 2, 18))(
    num_tokens=90, dim=40, depth=2, max_seq_len=48, heads=5, dim_head=8, local_attn_window_size=6
)
constructor("local_attention_layer", "local-attention", "local_attention.transformer:LocalMHA", x=(2, 18, 40))(
    dim=40, window_size=6, heads=5, dim_head=8, causal=True
)


@case("chronos-forecasting")
def chronos_bolt() -> Case:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    c = T5Config(
        d_model=40, d_kv=8, d_ff=48, num_layers=2, num_heads=5, vocab_size=2, pad_token_id=0, decoder_start_token_id=0
    )
    c.chronos_config = {
        "context_length": 64,
        "prediction_length": 8,
        "input_patch_size": 8,
        "input_patch_stride": 8,
        "quantiles": [0.1, 0.5, 0.9],
        "use_reg_token": True,
    }

    model = ChronosBoltModelForForecasting(c)

    def forward(self: Any, context: Tensor) -> Any:
        return self.model(context=context).quantile_preds

    return around(model, forward), {"context": floats(2, 40)}


constructor("conformer", "conformer", "conformer:Conformer", x=(2, 17, 40))(40, depth=2, dim_head=8, heads=5)
constructor("perceiver", "perceiver-pytorch", "perceiver_pytorch:Perceiver", data=(2, 8, 8, 3))(
    num_freq_bands=4,
    max_freq=10.0,
    depth=1,
    input_axis=2,
    input_channels=3,
    num_latents=7,
    latent_dim=40,
    cross_heads=1,
    latent_heads=5,
    cross_dim_head=8,
    latent_dim_head=8,
    num_classes=7,
)
constructor("perceiver_io", "perceiver-pytorch", "perceiver_pytorch:PerceiverIO", data=(2, 17, 40), queries=(2, 5, 24))(
    dim=40,
    queries_dim=24,
    logits_dim=9,
    depth=1,
    num_latents=7,
    latent_dim=32,
    latent_heads=4,
    cross_dim_head=8,
    latent_dim_head=8,
)
constructor("performer", "performer-pytorch", "performer_pytorch:PerformerLM", x=lambda: ids(90, 2, 17))(
    num_tokens=90, max_seq_len=48, dim=40, depth=2, heads=5, dim_head=8, causal=False, nb_features=12
)
constructor(
    "linear_attention",
    "linear-attention-transformer",
    "linear_attention_transformer:LinearAttentionTransformerLM",
    x=lambda: ids(90, 2, 17),
)(num_tokens=90, dim=40, heads=5, depth=2, max_seq_len=48, causal=False)
constructor("nystrom", "nystrom-attention", "nystrom_attention:Nystromformer", x=(2, 20, 40))(
    dim=40, dim_head=8, heads=5, depth=2, num_landmarks=4
)
constructor("axial_image", "axial-attention", "axial_attention:AxialAttention", x=(2, 40, 6, 7))(
    dim=40, dim_index=1, heads=5, num_dimensions=2
)
constructor(
    "ft_transformer",
    "tab-transformer-pytorch",
    "tab_transformer_pytorch:FTTransformer",
    x_categ=lambda: torch.randint(0, 5, (3, 3)),
    x_numer=(3, 4),
)(categories=(10, 5, 6), num_continuous=4, dim=40, dim_out=1, depth=2, heads=5, dim_head=8)
constructor(
    "sam_image_encoder", "segment-anything", "segment_anything.modeling.image_encoder:ImageEncoderViT", x=(2, 3, 64, 64)
)(
    img_size=64,
    patch_size=8,
    embed_dim=40,
    depth=2,
    num_heads=5,
    out_chans=16,
    use_rel_pos=True,
    window_size=3,
    global_attn_indexes=(1,),
)
constructor(
    "sam_two_way",
    "segment-anything",
    "segment_anything.modeling.transformer:TwoWayTransformer",
    image_embedding=(2, 40, 6, 7),
    image_pe=(2, 40, 6, 7),
    point_embedding=(2, 3, 40),
)(depth=2, embedding_dim=40, num_heads=5, mlp_dim=48, attention_downsample_rate=1)
constructor("xclip_text", "x-clip", "x_clip.x_clip:TextTransformer", x=lambda: ids(90, 2, 17))(
    40, num_tokens=90, max_seq_len=32, depth=2, heads=5, dim_head=8
)
constructor("timesformer", "timesformer-pytorch", "timesformer_pytorch:TimeSformer", video=(2, 3, 3, 16, 16))(
    dim=40, image_size=16, patch_size=8, num_frames=3, num_classes=7, depth=2, heads=5, dim_head=8
)
constructor("enformer_attention", "enformer-pytorch", "enformer_pytorch.modeling_enformer:Attention", x=(2, 17, 40))(
    40, num_rel_pos_features=30, heads=5, dim_key=8, dim_value=8
)


@case("iTransformer")
def itransformer() -> Case:
    from iTransformer import iTransformer

    model = iTransformer(num_variates=7, lookback_len=24, dim=40, depth=2, heads=5, dim_head=8, pred_length=6)

    def forward(self: Any, x: Tensor) -> Any:
        return self.model(x)

    return around(model, forward), {"x": floats(2, 24, 7)}


constructor("mega", "mega-pytorch", "mega_pytorch:Mega", x=lambda: ids(90, 2, 17))(
    num_tokens=90, dim=40, depth=2, ema_heads=4, attn_dim_qk=16, attn_dim_value=48, laplacian_attn_fn=False
)
constructor(
    "memorizing_attention",
    "memorizing-transformers-pytorch",
    "memorizing_transformers_pytorch.memorizing_transformers_pytorch:Attention",
    x=(2, 17, 40),
)(dim=40, heads=5, dim_head=8)
constructor(
    "bidirectional",
    "bidirectional-cross-attention",
    "bidirectional_cross_attention:BidirectionalCrossAttention",
    x=(2, 17, 40),
    context=(2, 9, 24),
)(dim=40, heads=5, dim_head=8, context_dim=24)
constructor("charformer", "charformer-pytorch", "charformer_pytorch:GBST", x=lambda: ids(90, 2, 24))(
    num_tokens=90, dim=40, max_block_size=4, downsample_factor=4
)


@case("espnet")
def espnet_conformer() -> Case:
    from espnet.nets.pytorch_backend.conformer.encoder import Encoder

    model = Encoder(
        idim=20,
        attention_dim=40,
        attention_heads=5,
        linear_units=64,
        num_blocks=2,
        input_layer="linear",
        pos_enc_layer_type="rel_pos",
        selfattention_layer_type="rel_selfattn",
    )

    def forward(self: Any, xs: Tensor) -> Any:
        return self.model(xs, None)[0]

    return around(model, forward), {"xs": floats(2, 17, 20)}


@case("espnet")
def espnet_transformer() -> Case:
    from espnet.nets.pytorch_backend.transformer.encoder import Encoder

    model = Encoder(idim=20, attention_dim=40, attention_heads=5, linear_units=64, num_blocks=2, input_layer="linear")

    def forward(self: Any, xs: Tensor, mask: Tensor) -> Any:
        return self.model(xs, mask[:, None, :])[0]

    return around(model, forward), {"xs": floats(2, 17, 20), "mask": torch.ones(2, 17, dtype=torch.bool)}


@case("torchscale")
def torchscale_encoder() -> Case:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder

    c = EncoderConfig(
        encoder_embed_dim=40,
        encoder_attention_heads=5,
        encoder_ffn_embed_dim=64,
        encoder_layers=2,
        rel_pos_buckets=8,
        max_rel_pos=16,
        vocab_size=90,
        no_output_layer=True,
    )

    model = Encoder(c)

    def forward(self: Any, x: Tensor) -> Any:
        return self.model(src_tokens=None, token_embeddings=x)["encoder_out"]

    return around(model, forward), {"x": floats(2, 17, 40)}


@case("torchscale")
def torchscale_retention() -> Case:
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    c = RetNetConfig(
        decoder_embed_dim=40,
        decoder_value_embed_dim=80,
        decoder_retention_heads=5,
        decoder_ffn_embed_dim=64,
        decoder_layers=2,
        vocab_size=90,
    )

    model = RetNetDecoder(c, embed_tokens=nn.Embedding(90, 40))

    def forward(self: Any, tokens: Tensor) -> Any:
        return self.model(tokens)[0]

    return around(model, forward), {"tokens": ids(90, 2, 17)}


@case("pytorch-transformers")
def pytorch_transformers_bert() -> Case:
    from pytorch_transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size_or_config_json_file=90,
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=5,
            intermediate_size=64,
            max_position_embeddings=48,
        )
    ), {
        "input_ids": ids(90, 2, 17),
        "token_type_ids": torch.zeros(2, 17, dtype=torch.long),
        "attention_mask": torch.ones(2, 17, dtype=torch.long),
    }


@case("pytorch-transformers")
def pytorch_transformers_xlnet() -> Case:
    from pytorch_transformers import XLNetConfig, XLNetModel

    return XLNetModel(XLNetConfig(vocab_size_or_config_json_file=90, d_model=40, n_layer=2, n_head=5, d_inner=64)), {
        "input_ids": ids(90, 2, 17)
    }


constructor(
    "rtdl_ft",
    "rtdl-revisiting-models",
    "rtdl_revisiting_models:FTTransformer",
    x_cont=(3, 4),
    x_cat=lambda: torch.randint(0, 5, (3, 2)),
)(
    n_cont_features=4,
    cat_cardinalities=[5, 6],
    d_out=2,
    n_blocks=2,
    d_block=40,
    attention_n_heads=5,
    attention_dropout=0.0,
    ffn_d_hidden=48,
    ffn_d_hidden_multiplier=None,
    ffn_dropout=0.0,
    residual_dropout=0.0,
)


@case("litgpt")
def litgpt_llama() -> Case:
    from litgpt import GPT, Config

    return GPT(
        Config(
            block_size=48,
            vocab_size=90,
            padded_vocab_size=96,
            n_layer=2,
            n_head=5,
            n_embd=40,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
            intermediate_size=64,
            n_query_groups=5,
        )
    ), {"idx": ids(90, 2, 17)}


@case("sam2")
def hiera() -> Case:
    from sam2.modeling.backbones.hieradet import Hiera

    model = Hiera(
        embed_dim=24,
        num_heads=1,
        stages=(1, 2, 2, 1),
        global_att_blocks=(4,),
        window_spec=(8, 4, 4, 2),
        window_pos_embed_bkg_spatial_size=(4, 4),
    )

    def forward(self: Any, x: Tensor) -> Any:
        return self.model(x)[-1]

    return around(model, forward), {"x": floats(2, 3, 64, 64)}


@case("rotary-embedding-torch")
def rotary_layer() -> Case:
    from rotary_embedding_torch import RotaryEmbedding

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.rope = nn.Linear(40, 120), nn.Linear(40, 40), RotaryEmbedding(dim=8)

        def forward(self, x: Tensor) -> Any:
            b, n, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, n, 3, 5, 8).permute(2, 0, 3, 1, 4)
            q, k = self.rope.rotate_queries_or_keys(q), self.rope.rotate_queries_or_keys(k)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).reshape(b, n, 40))

    return Layer(), {"x": floats(2, 17, 40)}


constructor(
    "muse_transformer",
    "muse-maskgit-pytorch",
    "muse_maskgit_pytorch.muse_maskgit_pytorch:TransformerBlocks",
    x=(2, 17, 40),
    context=(2, 9, 40),
)(dim=40, depth=2, dim_head=8, heads=5)
constructor("sinkhorn", "sinkhorn-transformer", "sinkhorn_transformer:SinkhornTransformer", x=(2, 24, 40))(
    dim=40, heads=5, depth=2, bucket_size=6, n_local_attn_heads=0
)
constructor("performer_geometric", "torch_geometric", "torch_geometric.nn.attention:PerformerAttention", x=(2, 17, 40))(
    channels=40, heads=5, head_channels=8
)
constructor("uni2ts_encoder", "uni2ts", "uni2ts.module.transformer:TransformerEncoder", x=(2, 17, 40))(
    40, 2, num_heads=5, use_moe=False, use_glu=True
)
constructor("flamingo_resampler", "open-flamingo", "open_flamingo.src.helpers:PerceiverResampler", x=(2, 1, 1, 17, 40))(
    dim=40, depth=2, dim_head=8, heads=5, num_latents=7, max_num_media=None
)


@case("curated-transformers")
def curated_falcon() -> Case:
    from curated_transformers.models import FalconCausalLM, FalconConfig

    c = FalconConfig(
        hidden_width=40,
        n_hidden_layers=2,
        n_query_heads=5,
        n_key_value_heads=1,
        n_pieces=90,
        dtype=torch.float32,
        use_alibi=False,
        new_decoder_architecture=False,
    )
    from curated_transformers.layers import AttentionMask

    model = FalconCausalLM(c)

    def forward(self: Any, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model(input_ids, AttentionMask(attention_mask)).logits

    return around(model, forward), {"input_ids": ids(90, 2, 17), "attention_mask": torch.ones(2, 17, dtype=torch.bool)}


constructor("h_transformer", "h-transformer-1d", "h_transformer_1d:HTransformer1D", x=lambda: ids(90, 2, 32))(
    num_tokens=90, dim=40, depth=2, causal=False, max_seq_len=32, heads=5, dim_head=8, block_size=8
)
constructor(
    "lightly_mae", "lightly", "lightly.models.modules.masked_autoencoder_timm:MAEDecoderTIMM", input=(2, 17, 40)
)(
    in_chans=3,
    patch_size=8,
    num_patches=16,
    embed_dim=40,
    decoder_embed_dim=40,
    decoder_depth=2,
    decoder_num_heads=5,
    mlp_ratio=2.0,
)
