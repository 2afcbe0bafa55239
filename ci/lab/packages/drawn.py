"""The second draw: small modules of 36 more packages, chosen by downloads and written down before any was converted.

drawn.txt has the versions of the packages.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, case, floats, ids


@case("diffusers")
def diffusers_dit() -> Case:
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        norm_num_groups=4,
        sample_size=8,
        num_embeds_ada_norm=10,
    ), {
        "hidden_states": floats(2, 4, 8, 8),
        "timestep": torch.tensor([3, 700]),
        "class_labels": torch.tensor([1, 9]),
    }


@case("diffusers")
def diffusers_unet() -> Case:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
        norm_num_groups=8,
    ), {
        "sample": floats(2, 4, 16, 16),
        "timestep": torch.tensor([3, 700]),
        "encoder_hidden_states": floats(2, 7, 24),
    }


@case("diffusers")
def diffusers_sd3() -> Case:
    from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel

    return SD3Transformer2DModel(
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
    ), {
        "hidden_states": floats(2, 4, 16, 16),
        "encoder_hidden_states": floats(2, 7, 24),
        "pooled_projections": floats(2, 20),
        "timestep": torch.tensor([3, 700]),
    }


@case("diffusers")
def diffusers_vae() -> Case:
    from diffusers.models.autoencoders.vae import Decoder

    return Decoder(
        in_channels=4,
        out_channels=3,
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 48),
        layers_per_block=1,
        norm_num_groups=8,
    ), {"sample": floats(2, 4, 8, 8)}


@case("torchaudio")
def torchaudio_conformer() -> Case:
    from torchaudio.models import Conformer

    return Conformer(40, num_heads=5, ffn_dim=64, num_layers=2, depthwise_conv_kernel_size=7), {
        "input": floats(2, 17, 40),
        "lengths": torch.tensor([17, 12]),
    }


@case("torchaudio")
def torchaudio_wav2vec2() -> Case:
    from torchaudio.models import wav2vec2_model

    return wav2vec2_model(
        "group_norm", [(32, 10, 5), (32, 3, 2)], False, 40, 0.0, 8, 4, 2, 5, 0.0, 64, 0.0, 0.0, False, 0.0, 9
    ), {"waveforms": floats(2, 400)}


@case("torchaudio")
def torchaudio_tasnet() -> Case:
    from torchaudio.models import ConvTasNet

    return ConvTasNet(
        num_sources=2,
        enc_kernel_size=8,
        enc_num_feats=32,
        msk_kernel_size=3,
        msk_num_feats=16,
        msk_num_hidden_feats=32,
        msk_num_layers=2,
        msk_num_stacks=1,
    ), {"input": floats(2, 1, 80)}


@case("ultralytics")
def ultralytics_aifi() -> Case:
    from ultralytics.nn.modules import AIFI

    return AIFI(40, cm=64, num_heads=5), {"x": floats(2, 40, 6, 7)}


@case("ultralytics")
def ultralytics_psa() -> Case:
    from ultralytics.nn.modules import C2PSA

    return C2PSA(128, 128, n=1), {"x": floats(2, 128, 6, 7)}


@case("kornia")
def kornia_vit() -> Case:
    from kornia.models.vit import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, in_channels=3, embed_dim=40, depth=2, num_heads=5, dropout_rate=0.0
    ), {"x": floats(2, 3, 32, 32)}


@case("kornia")
def kornia_loftr() -> Case:
    from kornia.feature.loftr.loftr_module.transformer import LocalFeatureTransformer

    return LocalFeatureTransformer(
        {"d_model": 40, "nhead": 5, "layer_names": ["self", "cross"], "attention": "linear"}
    ), {"feat0": floats(2, 17, 40), "feat1": floats(2, 23, 40)}


@case("spandrel")
def spandrel_swinir() -> Case:
    from spandrel.architectures.SwinIR import SwinIR

    return SwinIR(
        img_size=16,
        embed_dim=24,
        depths=[2],
        num_heads=[4],
        window_size=4,
        mlp_ratio=2.0,
        upscale=2,
        upsampler="pixelshuffledirect",
    ), {"x": floats(2, 3, 16, 16)}


@case("spandrel")
def spandrel_esrgan() -> Case:
    from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet

    return RRDBNet(in_nc=3, out_nc=3, num_filters=16, num_blocks=1, scale=2), {"x": floats(2, 3, 12, 13)}


@case("stable-baselines3")
def baselines_cnn() -> Case:
    import numpy as np
    from gymnasium.spaces import Box
    from stable_baselines3.common.torch_layers import NatureCNN

    return NatureCNN(Box(0, 255, (4, 44, 44), np.uint8), features_dim=32), {"observations": floats(3, 4, 44, 44)}


@case("stable-baselines3")
def baselines_mlp() -> Case:
    from stable_baselines3.common.torch_layers import MlpExtractor

    return MlpExtractor(24, {"pi": [32, 16], "vf": [40]}, nn.Tanh, device="cpu"), {"features": floats(3, 24)}


@case("e3nn")
def e3nn_linear() -> Case:
    from e3nn.o3 import Linear

    return Linear("8x0e + 4x1o", "6x0e + 5x1o"), {"features": floats(7, 20)}


@case("e3nn")
def e3nn_product() -> Case:
    from e3nn.o3 import FullyConnectedTensorProduct

    return FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o"), {
        "x": floats(7, 10),
        "y": floats(7, 4),
    }


@case("gluonts")
def gluonts_patch_tst() -> Case:
    from gluonts.torch.model.patch_tst.module import PatchTSTModel

    return PatchTSTModel(
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
    ), {"past_target": floats(3, 32), "past_observed_values": torch.ones(3, 32)}


@case("gluonts")
def gluonts_feedforward() -> Case:
    from gluonts.torch.model.simple_feedforward.module import SimpleFeedForwardModel

    return SimpleFeedForwardModel(prediction_length=6, context_length=24, hidden_dimensions=[32, 32]), {
        "past_target": floats(3, 24)
    }


@case("lpips")
def lpips_alex() -> Case:
    from lpips import LPIPS

    return LPIPS(pretrained=False, pnet_rand=True, net="squeeze", verbose=False), {
        "in0": floats(2, 3, 64, 64),
        "in1": floats(2, 3, 64, 64),
    }


@case("segmentation-models-pytorch")
def smp_unet() -> Case:
    from segmentation_models_pytorch import Unet

    return Unet("resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(32, 24, 16), classes=3), {
        "x": floats(2, 3, 32, 32)
    }


@case("segmentation-models-pytorch")
def smp_segformer() -> Case:
    from segmentation_models_pytorch import Segformer

    return Segformer("mit_b0", encoder_weights=None, decoder_segmentation_channels=32, classes=3), {
        "x": floats(2, 3, 64, 64)
    }


@case("gliner")
def gliner_cross() -> Case:
    from gliner.modeling.layers import CrossAttentionBlock

    return CrossAttentionBlock(40, 5, 0.0), {"query": floats(2, 7, 40), "key": floats(2, 17, 40)}


@case("gliner")
def gliner_span_query() -> Case:
    from gliner.modeling.span_rep import SpanQuery

    return SpanQuery(40, 5), {"h": floats(2, 17, 40)}


@case("openunmix")
def openunmix() -> Case:
    from openunmix.model import OpenUnmix

    return OpenUnmix(nb_bins=33, nb_channels=2, hidden_size=32, nb_layers=2, max_bin=29), {"x": floats(2, 2, 33, 14)}


@case("monai")
def monai_vit() -> Case:
    from monai.networks.nets import ViT

    return ViT(
        in_channels=1,
        img_size=(16, 16, 16),
        patch_size=(8, 8, 8),
        hidden_size=40,
        mlp_dim=64,
        num_layers=2,
        num_heads=5,
        classification=True,
    ), {"x": floats(2, 1, 16, 16, 16)}


@case("monai")
def monai_unetr() -> Case:
    from monai.networks.nets import UNETR

    return UNETR(
        in_channels=1,
        out_channels=3,
        img_size=(32, 32),
        feature_size=8,
        hidden_size=40,
        mlp_dim=64,
        num_heads=5,
        spatial_dims=2,
    ), {"x_in": floats(2, 1, 32, 32)}


@case("monai")
def monai_swin_unetr() -> Case:
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(
        in_channels=1,
        out_channels=3,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 4, 8),
        window_size=4,
        feature_size=12,
        spatial_dims=2,
    ), {"x_in": floats(2, 1, 64, 64)}


@case("monai")
def monai_unet() -> Case:
    from monai.networks.nets import UNet

    return UNet(spatial_dims=2, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2)), {
        "x": floats(2, 1, 32, 32)
    }


@case("vocos")
def vocos_backbone() -> Case:
    from vocos.models import VocosBackbone

    return VocosBackbone(input_channels=20, dim=32, intermediate_dim=64, num_layers=2), {"x": floats(2, 20, 17)}


@case("encodec")
def encodec_encoder() -> Case:
    from encodec.modules import SEANetEncoder

    return SEANetEncoder(dimension=32, n_filters=8, ratios=[4, 2], lstm=1), {"x": floats(2, 1, 96)}


@case("encodec")
def encodec_decoder() -> Case:
    from encodec.modules import SEANetDecoder

    return SEANetDecoder(dimension=32, n_filters=8, ratios=[4, 2], lstm=1, causal=True), {"z": floats(2, 32, 13)}


@case("pytorch-forecasting")
def forecasting_attention() -> Case:
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import InterpretableMultiHeadAttention

    return InterpretableMultiHeadAttention(n_head=5, d_model=40), {
        "q": floats(2, 7, 40),
        "k": floats(2, 17, 40),
        "v": floats(2, 17, 40),
    }


@case("pytorch-forecasting")
def forecasting_residual() -> Case:
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import GatedResidualNetwork

    return GatedResidualNetwork(24, 40, 32, context_size=12), {"x": floats(2, 17, 24), "context": floats(2, 17, 12)}


@case("demucs")
def demucs_cross() -> Case:
    from demucs.transformer import CrossTransformerEncoder

    return CrossTransformerEncoder(40, num_heads=5, num_layers=2), {"x": floats(2, 40, 4, 9), "xt": floats(2, 40, 21)}


@case("demucs")
def demucs_waveform() -> Case:
    from demucs.demucs import Demucs

    return Demucs(["a", "b"], audio_channels=1, channels=8, depth=2, dconv_attn=9, dconv_lstm=9, resample=False), {
        "mix": floats(2, 1, 420)
    }


@case("efficientnet-pytorch")
def efficientnet() -> Case:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=7, image_size=64), {"inputs": floats(2, 3, 64, 64)}


@case("snac")
def snac_encoder() -> Case:
    from snac.layers import Encoder

    return Encoder(d_model=16, strides=[2, 4], attn_window_size=4), {"x": floats(2, 1, 128)}


@case("snac")
def snac_attention() -> Case:
    from snac.attention import LocalMHA

    return LocalMHA(dim=40, window_size=6, dim_head=8), {"x": floats(2, 40, 18)}


@case("facenet-pytorch")
def facenet() -> Case:
    from facenet_pytorch import InceptionResnetV1

    return InceptionResnetV1(), {"x": floats(2, 3, 96, 96)}


@case("pretrainedmodels")
def pretrained_se() -> Case:
    from pretrainedmodels import se_resnet50

    return se_resnet50(num_classes=1000, pretrained=None).layer1, {"input": floats(2, 64, 12, 13)}


@case("tabicl")
def tabicl_set() -> Case:
    from tabicl._model.encoders import SetTransformer

    return SetTransformer(num_blocks=2, d_model=40, nhead=5, dim_feedforward=64, num_inds=7, zero_init=False), {
        "src": floats(2, 17, 40)
    }


@case("tabicl")
def tabicl_encoder() -> Case:
    from tabicl._model.encoders import Encoder

    return Encoder(num_blocks=2, d_model=40, nhead=5, dim_feedforward=64, use_rope=True, zero_init=False), {
        "src": floats(2, 17, 40)
    }


@case("pytorch-tabnet")
def tabnet() -> Case:
    from pytorch_tabnet.tab_network import TabNetNoEmbeddings

    return TabNetNoEmbeddings(24, 3, group_attention_matrix=torch.eye(24)), {"x": floats(3, 24)}


@case("pytorch-crf")
def crf_likelihood() -> Case:
    from torchcrf import CRF

    return CRF(5, batch_first=True), {"emissions": floats(2, 9, 5), "tags": torch.randint(0, 5, (2, 9))}


@case("denoising-diffusion-pytorch")
def ddpm_unet() -> Case:
    from denoising_diffusion_pytorch import Unet

    return Unet(dim=16, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8), {
        "x": floats(2, 3, 16, 16),
        "time": torch.tensor([3, 700]),
    }


@case("denoising-diffusion-pytorch")
def ddpm_unet_1d() -> Case:
    from denoising_diffusion_pytorch import Unet1D

    return Unet1D(dim=16, dim_mults=(1, 2), channels=5, attn_heads=2, attn_dim_head=8), {
        "x": floats(2, 5, 32),
        "time": torch.tensor([3, 700]),
    }


@case("reformer-pytorch")
def reformer() -> Case:
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(40, heads=5, bucket_size=4, n_hashes=2, causal=False), {"x": floats(2, 24, 40)}


@case("egnn-pytorch")
def egnn() -> Case:
    from egnn_pytorch import EGNN

    return EGNN(dim=32, m_dim=16), {"feats": floats(2, 9, 32), "coors": floats(2, 9, 3)}


@case("ncps")
def ncps_cfc() -> Case:
    from ncps.torch import CfC

    return CfC(12, 24), {"input": floats(2, 9, 12)}


@case("ncps")
def ncps_ltc() -> Case:
    from ncps.torch import LTC

    return LTC(12, 16, ode_unfolds=2), {"input": floats(2, 9, 12)}


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

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Transformer(TransformerConfig(40, 64, 5, "rms", "rms", "rms", False, True, "swish", True))

        def forward(self, x: Tensor, patch_mask: Tensor) -> Any:
            return self.model(x, patch_mask)[0]

    return Wrapped(), {"x": floats(2, 17, 40), "patch_mask": torch.zeros(2, 17, dtype=torch.bool)}


@case("tabm")
def tabm_ensemble() -> Case:
    from tabm import TabM

    return TabM.make(n_num_features=6, cat_cardinalities=[4, 7], d_out=1, k=4, n_blocks=2, d_block=32), {
        "x_num": floats(3, 6),
        "x_cat": torch.randint(0, 4, (3, 2)),
    }


@case("g-mlp-pytorch")
def gmlp() -> Case:
    from g_mlp_pytorch import gMLP

    return gMLP(num_tokens=90, dim=40, depth=2, seq_len=24, causal=True), {"x": ids(90, 2, 24)}


@case("invariant-point-attention")
def ipa_block() -> Case:
    from invariant_point_attention import IPABlock

    return IPABlock(dim=32, heads=4, scalar_key_dim=8, scalar_value_dim=8, require_pairwise_repr=False), {
        "x": floats(2, 9, 32),
        "rotations": floats(2, 9, 3, 3),
        "translations": floats(2, 9, 3),
    }


@case("graph-transformer-pytorch")
def graph_transformer() -> Case:
    from graph_transformer_pytorch import GraphTransformer

    return GraphTransformer(dim=40, depth=2, dim_head=8, edge_dim=16, heads=5, with_feedforwards=True), {
        "nodes": floats(2, 9, 40),
        "edges": floats(2, 9, 9, 16),
    }


@case("asteroid")
def asteroid_tasnet() -> Case:
    from asteroid.models import ConvTasNet

    return ConvTasNet(
        2, n_blocks=2, n_repeats=1, bn_chan=16, hid_chan=32, skip_chan=16, n_filters=32, kernel_size=8, stride=4
    ), {"wav": floats(2, 1, 96)}


@case("asteroid")
def asteroid_dprnn() -> Case:
    from asteroid.masknn import DPRNN

    return DPRNN(16, 2, bn_chan=16, hid_size=16, chunk_size=6, n_repeats=1), {"mixture_w": floats(2, 16, 24)}


@case("torchxrayvision")
def xray_densenet() -> Case:
    from torchxrayvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, in_channels=1, num_classes=5), {
        "x": floats(2, 1, 64, 64)
    }
