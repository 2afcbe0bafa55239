"""The fourth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the third: for each kind, of the packages that import with this version of PyTorch, one of the most downloaded
that had not been tried here. drawn_fourth.txt has their versions.
"""

import torch
from torch import nn

from ci.lab.packages.modules import Case, case, floats


@case("rfdetr")
def rfdetr_layer() -> Case:
    from rfdetr.models.transformer import TransformerDecoderLayer

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = TransformerDecoderLayer(40, 5, 8, 64, 0.0, num_feature_levels=1, dec_n_points=4)
            self.height, self.width = 6, 7

        def forward(self, tgt: torch.Tensor, memory: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            shapes = torch.tensor([[self.height, self.width]])
            return self.layer(
                tgt,
                memory,
                reference_points=boxes[:, :, None],
                spatial_shapes=shapes,
                level_start_index=torch.tensor([0]),
            )

    return Attention(), {"tgt": floats(2, 11, 40), "memory": floats(2, 42, 40), "boxes": torch.rand(2, 11, 4)}


@case("rfdetr")
def rfdetr_dino() -> Case:
    from rfdetr.models.backbone.dinov2_with_windowed_attn import (
        WindowedDinov2WithRegistersBackbone,
        WindowedDinov2WithRegistersConfig,
    )

    config = WindowedDinov2WithRegistersConfig(
        hidden_size=40,
        num_hidden_layers=3,
        num_attention_heads=5,
        mlp_ratio=2,
        image_size=64,
        patch_size=8,
        num_windows=2,
        num_register_tokens=0,
        window_block_indexes=[0, 1],
        out_features=["stage2", "stage3"],
        return_dict=False,
    )

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = WindowedDinov2WithRegistersBackbone(config)

        def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
            return list(self.backbone(pixels)[0])

    return Features(), {"pixels": floats(2, 3, 64, 64)}


@case("python-doctr")
def doctr_crnn() -> Case:
    from doctr.models import crnn_mobilenet_v3_small

    return crnn_mobilenet_v3_small(pretrained=False, pretrained_backbone=False, exportable=True), {
        "x": floats(2, 3, 32, 128)
    }


@case("python-doctr")
def doctr_vitstr() -> Case:
    from doctr.models import vitstr_small

    return vitstr_small(pretrained=False, pretrained_backbone=False, exportable=True), {"x": floats(2, 3, 32, 128)}


@case("python-doctr")
def doctr_db() -> Case:
    from doctr.models import db_mobilenet_v3_large

    return db_mobilenet_v3_large(pretrained=False, pretrained_backbone=False, exportable=True), {
        "x": floats(2, 3, 64, 96)
    }


@case("neuralforecast")
def neuralforecast_patch_tst() -> Case:
    from neuralforecast.models.patchtst import PatchTST_backbone

    return PatchTST_backbone(3, 1, 48, 12, 8, 4, n_layers=2, hidden_size=40, n_heads=5, linear_hidden_size=64), {
        "z": floats(2, 3, 48)
    }


@case("neuralforecast")
def neuralforecast_tft_attention() -> Case:
    from neuralforecast.models.tft import InterpretableMultiHeadAttention

    return InterpretableMultiHeadAttention(
        n_head=5, hidden_size=40, example_length=64, attn_dropout=0.0, dropout=0.0
    ), {"x": floats(2, 64, 40)}


@case("neuralforecast")
def neuralforecast_decomposed() -> Case:
    from neuralforecast.models.autoformer import AutoCorrelation, AutoCorrelationLayer

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = AutoCorrelationLayer(AutoCorrelation(mask_flag=False, factor=1), 40, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, attn_mask=None)[0]

    return Layer(), {"x": floats(2, 24, 40)}


@case("neuraloperator")
def neuraloperator_fno() -> Case:
    from neuralop.models import FNO

    return FNO((8, 8), 3, 1, 16, n_layers=2), {"x": floats(2, 3, 24, 32)}


@case("braindecode")
def braindecode_conformer() -> Case:
    from braindecode.models.eegconformer import EEGConformer

    return EEGConformer(n_outputs=4, n_chans=7, n_times=300, num_layers=2, num_heads=5), {"x": floats(2, 7, 300)}


@case("braindecode")
def braindecode_labram() -> Case:
    from braindecode.models.labram import LABRAM_CHANNEL_ORDER, Labram

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Labram(n_times=600, n_outputs=4, n_chans=7, embed_dim=40, num_layers=2, num_heads=5)

        def forward(self, signal: torch.Tensor) -> torch.Tensor:
            return self.model(signal, ch_names=list(LABRAM_CHANNEL_ORDER[:7]))

    return Named(), {"signal": floats(2, 7, 600)}


@case("braindecode")
def braindecode_atcnet() -> Case:
    from braindecode.models.atcnet import ATCNet

    return ATCNet(n_outputs=4, n_chans=7, n_times=1000, sfreq=250), {"X": floats(2, 7, 1000)}


@case("torchgeo")
def torchgeo_croma() -> Case:
    from torchgeo.models import CROMA

    return CROMA(["optical"], encoder_dim=48, encoder_depth=2, num_heads=16, patch_size=8, image_size=32), {
        "x_optical": floats(2, 12, 32, 32)
    }


@case("torchgeo")
def torchgeo_ltae() -> Case:
    from torchgeo.models import LTAE

    return LTAE(in_channels=40, n_head=5, d_k=8, n_neurons=(40, 32), d_model=40, len_max_seq=13), {
        "x": floats(2, 13, 40)
    }


@case("speechbrain")
def speechbrain_ecapa() -> Case:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    return ECAPA_TDNN(40, lin_neurons=24, channels=[32, 32, 32, 32, 96]), {"x": floats(2, 61, 40)}


@case("speechbrain")
def speechbrain_branchformer() -> Case:
    from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = RelPosEncXL(40)
            self.encoder = BranchformerEncoder(2, 40, 5, kernel_size=7, csgu_linear_units=64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, pos_embs=self.positions(x))[0]

    return Encoder(), {"x": floats(2, 23, 40)}


@case("funasr")
def funasr_sanm() -> Case:
    from funasr.models.sanm.encoder import SANMEncoder

    return SANMEncoder(40, 40, 5, 64, 2, input_layer="pe", kernel_size=5), {
        "xs_pad": floats(2, 19, 40),
        "ilens": torch.tensor([19, 12]),
    }


@case("compressai")
def compressai_analysis() -> Case:
    from compressai.models import Cheng2020Attention

    return Cheng2020Attention(N=16).g_a, {"input": floats(2, 3, 64, 64)}


@case("compressai")
def compressai_synthesis() -> Case:
    from compressai.models import ScaleHyperprior

    return ScaleHyperprior(16, 24).g_s, {"input": floats(2, 24, 5, 6)}


@case("bs-roformer")
def bs_roformer() -> Case:
    from bs_roformer import BSRoformer

    return BSRoformer(
        40,
        depth=1,
        time_transformer_depth=1,
        freq_transformer_depth=1,
        freqs_per_bands=(4, 5, 8, 16),
        dim_head=8,
        heads=5,
        dim_freqs_in=33,
        stft_n_fft=64,
        stft_hop_length=16,
        stft_win_length=64,
    ), {"raw_audio": floats(2, 800)}


@case("descript-audio-codec")
def dac_encoder() -> Case:
    from dac.model.dac import Encoder

    return Encoder(8, [2, 4], 24), {"x": floats(2, 1, 320)}


@case("descript-audio-codec")
def dac_decoder() -> Case:
    from dac.model.dac import Decoder

    return Decoder(24, 32, [4, 2]), {"x": floats(2, 24, 19)}


@case("pytorchvideo")
def pytorchvideo_mvit() -> Case:
    from pytorchvideo.models.vision_transformers import create_multiscale_vision_transformers

    return create_multiscale_vision_transformers(
        spatial_size=64,
        temporal_size=8,
        depth=3,
        patch_embed_dim=32,
        num_heads=1,
        embed_dim_mul=[[1, 2.0]],
        atten_head_mul=[[1, 2.0]],
        pool_q_stride_size=[[1, 1, 2, 2]],
        pool_kv_stride_adaptive=[1, 4, 4],
        pool_kvq_kernel=[3, 3, 3],
        head_num_classes=7,
    ), {"x": floats(2, 3, 8, 64, 64)}


@case("granite-tsfm")
def tsfm_mixer() -> Case:
    from tsfm_public.models.tinytimemixer import TinyTimeMixerConfig, TinyTimeMixerForPrediction

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = TinyTimeMixerConfig(
                context_length=64,
                prediction_length=12,
                num_input_channels=3,
                patch_length=8,
                patch_stride=8,
                d_model=24,
            )
            self.model = TinyTimeMixerForPrediction(config)

        def forward(self, past_values: torch.Tensor) -> torch.Tensor:
            return self.model(past_values, return_loss=False).prediction_outputs

    return Forecast(), {"past_values": floats(2, 64, 3)}


@case("deepctr-torch")
def deepctr_autoint() -> Case:
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import AutoInt

    columns = [SparseFeat("item", 30, 8), SparseFeat("user", 50, 8), DenseFeat("price", 3)]
    features = torch.cat([torch.randint(0, 30, (5, 2)).float(), torch.randn(5, 3)], -1)
    return AutoInt(columns, columns, dnn_hidden_units=(16,)), {"X": features}


@case("dynamic-network-architectures")
def nnunet_residual() -> Case:
    from dynamic_network_architectures.architectures.unet import ResidualEncoderUNet

    return ResidualEncoderUNet(
        1,
        3,
        [8, 12, 16],
        nn.Conv3d,
        3,
        [1, 2, 2],
        [1, 1, 1],
        4,
        [1, 1],
        norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"affine": True},
        nonlin=nn.LeakyReLU,
    ), {"x": floats(2, 1, 16, 24, 32)}


@case("piq")
def piq_similarity() -> Case:
    from piq import MultiScaleSSIMLoss

    return MultiScaleSSIMLoss(kernel_size=3, reduction="none"), {
        "x": torch.rand(2, 3, 64, 80),
        "y": torch.rand(2, 3, 64, 80),
    }


@case("torchani")
def torchani_environments() -> Case:
    from torchani.aev import AEVComputer

    class Molecules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.computer = AEVComputer.like_2x(num_species=4)

        def forward(self, species: torch.Tensor, coordinates: torch.Tensor) -> torch.Tensor:
            return self.computer(species, coordinates)

    return Molecules(), {"species": torch.randint(0, 4, (2, 9)), "coordinates": floats(2, 9, 3)}
