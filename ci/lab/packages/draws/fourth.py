"""The fourth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the third: for each kind, of the packages that import with this version of PyTorch, one of the most downloaded
that had not been tried here. fourth.txt has their versions.
"""

import torch
from torch import nn

from ci.lab.packages.modules import Case, case, constructor, floats


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


constructor("doctr_crnn", "python-doctr", "doctr.models:crnn_mobilenet_v3_small", x=(2, 3, 32, 128))(
    pretrained=False, pretrained_backbone=False, exportable=True
)


constructor("doctr_vitstr", "python-doctr", "doctr.models:vitstr_small", x=(2, 3, 32, 128))(
    pretrained=False, pretrained_backbone=False, exportable=True
)


constructor("doctr_db", "python-doctr", "doctr.models:db_mobilenet_v3_large", x=(2, 3, 64, 96))(
    pretrained=False, pretrained_backbone=False, exportable=True
)


constructor(
    "neuralforecast_patch_tst", "neuralforecast", "neuralforecast.models.patchtst:PatchTST_backbone", z=(2, 3, 48)
)(3, 1, 48, 12, 8, 4, n_layers=2, hidden_size=40, n_heads=5, linear_hidden_size=64)


constructor(
    "neuralforecast_tft_attention",
    "neuralforecast",
    "neuralforecast.models.tft:InterpretableMultiHeadAttention",
    x=(2, 64, 40),
)(n_head=5, hidden_size=40, example_length=64, attn_dropout=0.0, dropout=0.0)


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


constructor("neuraloperator_fno", "neuraloperator", "neuralop.models:FNO", x=(2, 3, 24, 32))(
    (8, 8), 3, 1, 16, n_layers=2
)


constructor("braindecode_conformer", "braindecode", "braindecode.models.eegconformer:EEGConformer", x=(2, 7, 300))(
    n_outputs=4, n_chans=7, n_times=300, num_layers=2, num_heads=5
)


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


constructor("braindecode_atcnet", "braindecode", "braindecode.models.atcnet:ATCNet", X=(2, 7, 1000))(
    n_outputs=4, n_chans=7, n_times=1000, sfreq=250
)


constructor("torchgeo_croma", "torchgeo", "torchgeo.models:CROMA", x_optical=(2, 12, 32, 32))(
    ["optical"], encoder_dim=48, encoder_depth=2, num_heads=16, patch_size=8, image_size=32
)


constructor("torchgeo_ltae", "torchgeo", "torchgeo.models:LTAE", x=(2, 13, 40))(
    in_channels=40, n_head=5, d_k=8, n_neurons=(40, 32), d_model=40, len_max_seq=13
)


constructor("speechbrain_ecapa", "speechbrain", "speechbrain.lobes.models.ECAPA_TDNN:ECAPA_TDNN", x=(2, 61, 40))(
    40, lin_neurons=24, channels=[32, 32, 32, 32, 96]
)


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


constructor(
    "funasr_sanm",
    "funasr",
    "funasr.models.sanm.encoder:SANMEncoder",
    xs_pad=(2, 19, 40),
    ilens=lambda: torch.tensor([19, 12]),
)(40, 40, 5, 64, 2, input_layer="pe", kernel_size=5)


@case("compressai")
def compressai_analysis() -> Case:
    from compressai.models import Cheng2020Attention

    return Cheng2020Attention(N=16).g_a, {"input": floats(2, 3, 64, 64)}


@case("compressai")
def compressai_synthesis() -> Case:
    from compressai.models import ScaleHyperprior

    return ScaleHyperprior(16, 24).g_s, {"input": floats(2, 24, 5, 6)}


constructor("bs_roformer", "bs-roformer", "bs_roformer:BSRoformer", raw_audio=(2, 800))(
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
)


constructor("dac_encoder", "descript-audio-codec", "dac.model.dac:Encoder", x=(2, 1, 320))(8, [2, 4], 24)


constructor("dac_decoder", "descript-audio-codec", "dac.model.dac:Decoder", x=(2, 24, 19))(24, 32, [4, 2])


constructor(
    "pytorchvideo_mvit",
    "pytorchvideo",
    "pytorchvideo.models.vision_transformers:create_multiscale_vision_transformers",
    x=(2, 3, 8, 64, 64),
)(
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
)


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


constructor(
    "nnunet_residual",
    "dynamic-network-architectures",
    "dynamic_network_architectures.architectures.unet:ResidualEncoderUNet",
    x=(2, 1, 16, 24, 32),
)(
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
)


constructor(
    "piq_similarity",
    "piq",
    "piq:MultiScaleSSIMLoss",
    x=lambda: torch.rand(2, 3, 64, 80),
    y=lambda: torch.rand(2, 3, 64, 80),
)(kernel_size=3, reduction="none")


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
