"""The second draw: small modules of 36 more packages, chosen by downloads and written down before any was converted.

second.txt has the versions of the packages.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats, ids

constructor(
    "diffusers_dit",
    "diffusers",
    "diffusers.models.transformers.dit_transformer_2d:DiTTransformer2DModel",
    hidden_states=(2, 4, 8, 8),
    timestep=lambda: torch.tensor([3, 700]),
    class_labels=lambda: torch.tensor([1, 9]),
)(
    num_attention_heads=4,
    attention_head_dim=8,
    in_channels=4,
    out_channels=4,
    num_layers=2,
    norm_num_groups=4,
    sample_size=8,
    num_embeds_ada_norm=10,
)
constructor(
    "diffusers_unet",
    "diffusers",
    "diffusers.models.unets.unet_2d_condition:UNet2DConditionModel",
    sample=(2, 4, 16, 16),
    timestep=lambda: torch.tensor([3, 700]),
    encoder_hidden_states=(2, 7, 24),
)(
    sample_size=16,
    block_out_channels=(32, 64),
    layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=24,
    attention_head_dim=8,
    norm_num_groups=8,
)
constructor(
    "diffusers_sd3",
    "diffusers",
    "diffusers.models.transformers.transformer_sd3:SD3Transformer2DModel",
    hidden_states=(2, 4, 16, 16),
    encoder_hidden_states=(2, 7, 24),
    pooled_projections=(2, 20),
    timestep=lambda: torch.tensor([3, 700]),
)(
    sample_size=16,
    in_channels=4,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    joint_attention_dim=24,
    caption_projection_dim=32,
    pooled_projection_dim=20,
    out_channels=4,
    pos_embed_max_size=24,
)
constructor("diffusers_vae", "diffusers", "diffusers.models.autoencoders.vae:Decoder", sample=(2, 4, 8, 8))(
    in_channels=4,
    out_channels=3,
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    block_out_channels=(32, 48),
    layers_per_block=1,
    norm_num_groups=8,
)
constructor(
    "torchaudio_conformer",
    "torchaudio",
    "torchaudio.models:Conformer",
    input=(2, 17, 40),
    lengths=lambda: torch.tensor([17, 12]),
)(40, num_heads=5, ffn_dim=64, num_layers=2, depthwise_conv_kernel_size=7)
constructor("torchaudio_wav2vec2", "torchaudio", "torchaudio.models:wav2vec2_model", waveforms=(2, 400))(
    "group_norm", [(32, 10, 5), (32, 3, 2)], False, 40, 0.0, 8, 4, 2, 5, 0.0, 64, 0.0, 0.0, False, 0.0, 9
)
constructor("torchaudio_tasnet", "torchaudio", "torchaudio.models:ConvTasNet", input=(2, 1, 80))(
    num_sources=2,
    enc_kernel_size=8,
    enc_num_feats=32,
    msk_kernel_size=3,
    msk_num_feats=16,
    msk_num_hidden_feats=32,
    msk_num_layers=2,
    msk_num_stacks=1,
)
constructor("ultralytics_aifi", "ultralytics", "ultralytics.nn.modules:AIFI", x=(2, 40, 6, 7))(40, cm=64, num_heads=5)
constructor("ultralytics_psa", "ultralytics", "ultralytics.nn.modules:C2PSA", x=(2, 128, 6, 7))(128, 128, n=1)
constructor("kornia_vit", "kornia", "kornia.models.vit:VisionTransformer", x=(2, 3, 32, 32))(
    image_size=32, patch_size=8, in_channels=3, embed_dim=40, depth=2, num_heads=5, dropout_rate=0.0
)
constructor(
    "kornia_loftr",
    "kornia",
    "kornia.feature.loftr.loftr_module.transformer:LocalFeatureTransformer",
    feat0=(2, 17, 40),
    feat1=(2, 23, 40),
)({"d_model": 40, "nhead": 5, "layer_names": ["self", "cross"], "attention": "linear"})
constructor("spandrel_swinir", "spandrel", "spandrel.architectures.SwinIR:SwinIR", x=(2, 3, 16, 16))(
    img_size=16,
    embed_dim=24,
    depths=[2],
    num_heads=[4],
    window_size=4,
    mlp_ratio=2.0,
    upscale=2,
    upsampler="pixelshuffledirect",
)
constructor("spandrel_esrgan", "spandrel", "spandrel.architectures.ESRGAN.__arch.RRDB:RRDBNet", x=(2, 3, 12, 13))(
    in_nc=3, out_nc=3, num_filters=16, num_blocks=1, scale=2
)


@case("stable-baselines3")
def baselines_cnn() -> Case:
    import numpy as np
    from gymnasium.spaces import Box
    from stable_baselines3.common.torch_layers import NatureCNN

    return NatureCNN(Box(0, 255, (4, 44, 44), np.uint8), features_dim=32), {"observations": floats(3, 4, 44, 44)}


constructor(
    "baselines_mlp", "stable-baselines3", "stable_baselines3.common.torch_layers:MlpExtractor", features=(3, 24)
)(24, {"pi": [32, 16], "vf": [40]}, nn.Tanh, device="cpu")
constructor("e3nn_linear", "e3nn", "e3nn.o3:Linear", features=(7, 20))("8x0e + 4x1o", "6x0e + 5x1o")
constructor("e3nn_product", "e3nn", "e3nn.o3:FullyConnectedTensorProduct", x=(7, 10), y=(7, 4))(
    "4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o"
)
constructor(
    "gluonts_patch_tst",
    "gluonts",
    "gluonts.torch.model.patch_tst.module:PatchTSTModel",
    past_target=(3, 32),
    past_observed_values=lambda: torch.ones(3, 32),
)(
    prediction_length=6,
    context_length=32,
    patch_len=8,
    stride=4,
    padding_patch="end",
    d_model=40,
    nhead=5,
    dim_feedforward=64,
    num_feat_dynamic_real=0,
    dropout=0.0,
    activation="relu",
    norm_first=False,
    num_encoder_layers=2,
    scaling="mean",
)
constructor(
    "gluonts_feedforward",
    "gluonts",
    "gluonts.torch.model.simple_feedforward.module:SimpleFeedForwardModel",
    past_target=(3, 24),
)(prediction_length=6, context_length=24, hidden_dimensions=[32, 32])
constructor("lpips_alex", "lpips", "lpips:LPIPS", in0=(2, 3, 64, 64), in1=(2, 3, 64, 64))(
    pretrained=False, pnet_rand=True, net="squeeze", verbose=False
)
constructor("smp_unet", "segmentation-models-pytorch", "segmentation_models_pytorch:Unet", x=(2, 3, 32, 32))(
    "resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(32, 24, 16), classes=3
)
constructor("smp_segformer", "segmentation-models-pytorch", "segmentation_models_pytorch:Segformer", x=(2, 3, 64, 64))(
    "mit_b0", encoder_weights=None, decoder_segmentation_channels=32, classes=3
)
constructor("gliner_cross", "gliner", "gliner.modeling.layers:CrossAttentionBlock", query=(2, 7, 40), key=(2, 17, 40))(
    40, 5, 0.0
)
constructor("gliner_span_query", "gliner", "gliner.modeling.span_rep:SpanQuery", h=(2, 17, 40))(40, 5)
constructor("openunmix", "openunmix", "openunmix.model:OpenUnmix", x=(2, 2, 33, 14))(
    nb_bins=33, nb_channels=2, hidden_size=32, nb_layers=2, max_bin=29
)
constructor("monai_vit", "monai", "monai.networks.nets:ViT", x=(2, 1, 16, 16, 16))(
    in_channels=1,
    img_size=(16, 16, 16),
    patch_size=(8, 8, 8),
    hidden_size=40,
    mlp_dim=64,
    num_layers=2,
    num_heads=5,
    classification=True,
)
constructor("monai_unetr", "monai", "monai.networks.nets:UNETR", x_in=(2, 1, 32, 32))(
    in_channels=1,
    out_channels=3,
    img_size=(32, 32),
    feature_size=8,
    hidden_size=40,
    mlp_dim=64,
    num_heads=5,
    spatial_dims=2,
)
constructor("monai_swin_unetr", "monai", "monai.networks.nets:SwinUNETR", x_in=(2, 1, 64, 64))(
    in_channels=1,
    out_channels=3,
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 4, 8),
    window_size=4,
    feature_size=12,
    spatial_dims=2,
)
constructor("monai_unet", "monai", "monai.networks.nets:UNet", x=(2, 1, 32, 32))(
    spatial_dims=2, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2)
)
constructor("vocos_backbone", "vocos", "vocos.models:VocosBackbone", x=(2, 20, 17))(
    input_channels=20, dim=32, intermediate_dim=64, num_layers=2
)
constructor("encodec_encoder", "encodec", "encodec.modules:SEANetEncoder", x=(2, 1, 96))(
    dimension=32, n_filters=8, ratios=[4, 2], lstm=1
)
constructor("encodec_decoder", "encodec", "encodec.modules:SEANetDecoder", z=(2, 32, 13))(
    dimension=32, n_filters=8, ratios=[4, 2], lstm=1, causal=True
)
constructor(
    "forecasting_attention",
    "pytorch-forecasting",
    "pytorch_forecasting.models.temporal_fusion_transformer.sub_modules:InterpretableMultiHeadAttention",
    q=(2, 7, 40),
    k=(2, 17, 40),
    v=(2, 17, 40),
)(n_head=5, d_model=40)
constructor(
    "forecasting_residual",
    "pytorch-forecasting",
    "pytorch_forecasting.models.temporal_fusion_transformer.sub_modules:GatedResidualNetwork",
    x=(2, 17, 24),
    context=(2, 17, 12),
)(24, 40, 32, context_size=12)
constructor("demucs_cross", "demucs", "demucs.transformer:CrossTransformerEncoder", x=(2, 40, 4, 9), xt=(2, 40, 21))(
    40, num_heads=5, num_layers=2
)
constructor("demucs_waveform", "demucs", "demucs.demucs:Demucs", mix=(2, 1, 420))(
    ["a", "b"], audio_channels=1, channels=8, depth=2, dconv_attn=9, dconv_lstm=9, resample=False
)
constructor(
    "efficientnet", "efficientnet-pytorch", "efficientnet_pytorch:EfficientNet.from_name", inputs=(2, 3, 64, 64)
)("efficientnet-b0", num_classes=7, image_size=64)
constructor("snac_encoder", "snac", "snac.layers:Encoder", x=(2, 1, 128))(
    d_model=16, strides=[2, 4], attn_window_size=4
)
constructor("snac_attention", "snac", "snac.attention:LocalMHA", x=(2, 40, 18))(dim=40, window_size=6, dim_head=8)
constructor("facenet", "facenet-pytorch", "facenet_pytorch:InceptionResnetV1", x=(2, 3, 96, 96))()


@case("pretrainedmodels")
def pretrained_se() -> Case:
    from pretrainedmodels import se_resnet50

    return se_resnet50(num_classes=1000, pretrained=None).layer1, {"input": floats(2, 64, 12, 13)}


constructor("tabicl_set", "tabicl", "tabicl._model.encoders:SetTransformer", src=(2, 17, 40))(
    num_blocks=2, d_model=40, nhead=5, dim_feedforward=64, num_inds=7, zero_init=False
)
constructor("tabicl_encoder", "tabicl", "tabicl._model.encoders:Encoder", src=(2, 17, 40))(
    num_blocks=2, d_model=40, nhead=5, dim_feedforward=64, use_rope=True, zero_init=False
)
constructor("tabnet", "pytorch-tabnet", "pytorch_tabnet.tab_network:TabNetNoEmbeddings", x=(3, 24))(
    24, 3, group_attention_matrix=torch.eye(24)
)
constructor(
    "crf_likelihood", "pytorch-crf", "torchcrf:CRF", emissions=(2, 9, 5), tags=lambda: torch.randint(0, 5, (2, 9))
)(5, batch_first=True)
constructor(
    "ddpm_unet",
    "denoising-diffusion-pytorch",
    "denoising_diffusion_pytorch:Unet",
    x=(2, 3, 16, 16),
    time=lambda: torch.tensor([3, 700]),
)(dim=16, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8)
constructor(
    "ddpm_unet_1d",
    "denoising-diffusion-pytorch",
    "denoising_diffusion_pytorch:Unet1D",
    x=(2, 5, 32),
    time=lambda: torch.tensor([3, 700]),
)(dim=16, dim_mults=(1, 2), channels=5, attn_heads=2, attn_dim_head=8)
constructor("reformer", "reformer-pytorch", "reformer_pytorch:LSHSelfAttention", x=(2, 24, 40))(
    40, heads=5, bucket_size=4, n_hashes=2, causal=False
)
constructor("egnn", "egnn-pytorch", "egnn_pytorch:EGNN", feats=(2, 9, 32), coors=(2, 9, 3))(dim=32, m_dim=16)
constructor("ncps_cfc", "ncps", "ncps.torch:CfC", input=(2, 9, 12))(12, 24)
constructor("ncps_ltc", "ncps", "ncps.torch:LTC", input=(2, 9, 12))(12, 16, ode_unfolds=2)


@case("xlstm")
def xlstm_stack() -> Case:
    from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMBlockStack, xLSTMBlockStackConfig

    block = mLSTMBlockConfig(mlstm=mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=4))
    return xLSTMBlockStack(
        xLSTMBlockStackConfig(mlstm_block=block, context_length=32, num_blocks=2, embedding_dim=32)
    ), {"x": floats(2, 17, 32)}


@case("timesfm")
def timesfm_layer() -> Case:
    from timesfm.configs import TransformerConfig
    from timesfm.torch.transformer import Transformer

    model = Transformer(TransformerConfig(40, 64, 5, "rms", "rms", "rms", False, True, "swish", True))

    def forward(self: Any, x: Tensor, patch_mask: Tensor) -> Any:
        return self.model(x, patch_mask)[0]

    return around(model, forward), {"x": floats(2, 17, 40), "patch_mask": torch.zeros(2, 17, dtype=torch.bool)}


constructor("tabm_ensemble", "tabm", "tabm:TabM.make", x_num=(3, 6), x_cat=lambda: torch.randint(0, 4, (3, 2)))(
    n_num_features=6, cat_cardinalities=[4, 7], d_out=1, k=4, n_blocks=2, d_block=32
)
constructor("gmlp", "g-mlp-pytorch", "g_mlp_pytorch:gMLP", x=lambda: ids(90, 2, 24))(
    num_tokens=90, dim=40, depth=2, seq_len=24, causal=True
)
constructor(
    "ipa_block",
    "invariant-point-attention",
    "invariant_point_attention:IPABlock",
    x=(2, 9, 32),
    rotations=(2, 9, 3, 3),
    translations=(2, 9, 3),
)(dim=32, heads=4, scalar_key_dim=8, scalar_value_dim=8, require_pairwise_repr=False)
constructor(
    "graph_transformer",
    "graph-transformer-pytorch",
    "graph_transformer_pytorch:GraphTransformer",
    nodes=(2, 9, 40),
    edges=(2, 9, 9, 16),
)(dim=40, depth=2, dim_head=8, edge_dim=16, heads=5, with_feedforwards=True)
constructor("asteroid_tasnet", "asteroid", "asteroid.models:ConvTasNet", wav=(2, 1, 96))(
    2, n_blocks=2, n_repeats=1, bn_chan=16, hid_chan=32, skip_chan=16, n_filters=32, kernel_size=8, stride=4
)
constructor("asteroid_dprnn", "asteroid", "asteroid.masknn:DPRNN", mixture_w=(2, 16, 24))(
    16, 2, bn_chan=16, hid_size=16, chunk_size=6, n_repeats=1
)
constructor("xray_densenet", "torchxrayvision", "torchxrayvision.models:DenseNet", x=(2, 1, 64, 64))(
    growth_rate=8, block_config=(2, 2), num_init_features=16, in_channels=1, num_classes=5
)
