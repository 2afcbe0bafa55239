"""The third draw: 36 modules of 18 packages that are in neither list, written down before any was converted.

Chosen by kind and downloads: for each kind, of the packages that import with this version of PyTorch, the most
downloaded one that had not been tried here. third.txt has their versions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats, ids


@case("torchvision")
def torchvision_swin_v2() -> Case:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    return SwinTransformer(
        patch_size=[4, 4],
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=7,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    ), {"x": floats(2, 3, 64, 64)}


@case("torchvision")
def torchvision_video() -> Case:
    from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet

    return VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], R2Plus1dStem, num_classes=7), {
        "x": floats(2, 3, 8, 32, 32)
    }


@case("peft")
def peft_dora() -> Case:
    from peft import LoraConfig, get_peft_model

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.query, self.value = nn.Embedding(90, 40), nn.Linear(40, 40), nn.Linear(40, 40)
            self.convolution, self.head = nn.Conv1d(40, 32, 3, padding=1), nn.Linear(32, 7)

        def forward(self, tokens: Tensor) -> Any:
            x = self.embed(tokens)
            x = nn.functional.scaled_dot_product_attention(self.query(x), x, self.value(x))
            return self.head(self.convolution(x.transpose(1, 2)).transpose(1, 2))

    config = LoraConfig(
        r=4,
        target_modules=["embed", "query", "value", "convolution"],
        modules_to_save=["head"],
        use_dora=True,
        init_lora_weights=False,
    )
    return get_peft_model(Net(), config).base_model, {"tokens": ids(90, 2, 17)}


@case("peft")
def peft_prompt_encoder() -> Case:
    from peft import PromptEncoder, PromptEncoderConfig

    return PromptEncoder(
        PromptEncoderConfig(
            task_type="SEQ_2_SEQ_LM",
            num_virtual_tokens=20,
            token_dim=40,
            num_transformer_submodules=1,
            num_attention_heads=5,
            num_layers=2,
            encoder_reparameterization_type="LSTM",
            encoder_hidden_size=32,
        )
    ), {"indices": torch.arange(20).expand(2, -1).contiguous()}


constructor(
    "easyocr_recognition",
    "easyocr",
    "easyocr.model.vgg_model:Model",
    input=(2, 1, 64, 96),
    text=lambda: torch.zeros(2, 5, dtype=torch.long),
)(1, 64, 32, 97)
constructor("easyocr_craft", "easyocr", "easyocr.craft:CRAFT", x=(1, 3, 64, 64))(pretrained=False, freeze=False)


@case("pyannote-audio")
def pyannote_segmentation() -> Case:
    from pyannote.audio.core.task import Problem, Resolution, Specifications
    from pyannote.audio.models.segmentation import PyanNet

    model = PyanNet(
        sincnet={"stride": 10}, lstm={"hidden_size": 16, "num_layers": 2}, linear={"hidden_size": 24, "num_layers": 2}
    )
    model.specifications = Specifications(
        problem=Problem.MONO_LABEL_CLASSIFICATION,
        resolution=Resolution.FRAME,
        duration=10.0,
        classes=["a", "b", "c"],
        powerset_max_classes=2,
        permutation_invariant=True,
    )
    model.build()
    return model, {"waveforms": floats(2, 1, 16000)}


constructor(
    "pyannote_embedding",
    "pyannote-audio",
    "pyannote.audio.models.embedding.wespeaker.resnet:ResNet34",
    fbank=(2, 80, 40),
)(40, 64, pooling_func="TSTP", two_emb_layer=False)
constructor("quantize_residual", "vector-quantize-pytorch", "vector_quantize_pytorch:ResidualVQ", x=(2, 17, 40))(
    dim=40, num_quantizers=3, codebook_size=64
)
constructor("quantize_scalar", "vector-quantize-pytorch", "vector_quantize_pytorch:FSQ", z=(2, 17, 40))(
    levels=[8, 5, 5, 3], dim=40
)


@case("torchrl")
def torchrl_dueling() -> Case:
    from torchrl.modules import DuelingCnnDQNet

    module = DuelingCnnDQNet(6, 1, {"num_cells": [16, 24, 24]}, {"depth": 1, "num_cells": 32})
    module(floats(2, 4, 44, 44))  # its layers take their sizes from the first call
    return module, {"x": floats(3, 4, 44, 44)}


constructor("torchrl_act", "torchrl", "torchrl.modules.models.act:ACTModel", observation=(3, 14))(
    14, 6, 10, hidden_dim=40, nheads=5, num_encoder_layers=1, num_decoder_layers=2, latent_dim=8
)


@case("gpytorch")
def gpytorch_kernel() -> Case:
    from gpytorch.kernels import MaternKernel, ScaleKernel

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=5))

        def forward(self, x1: Tensor, x2: Tensor) -> Any:
            return self.kernel(x1, x2).to_dense()

    return Wrapped(), {"x1": floats(17, 5), "x2": floats(9, 5)}


@case("gpytorch")
def gpytorch_variational() -> Case:
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.kernels import RBFKernel, ScaleKernel
    from gpytorch.means import ConstantMean
    from gpytorch.models import ApproximateGP
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    class Model(ApproximateGP):
        def __init__(self, points: Tensor) -> None:
            distribution = CholeskyVariationalDistribution(points.size(0))
            super().__init__(VariationalStrategy(self, points, distribution, learn_inducing_locations=True))
            self.mean_module, self.covar_module = ConstantMean(), ScaleKernel(RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(torch.rand(12, 5))

        def forward(self, x: Tensor) -> Any:
            answer = self.model(x)
            return answer.mean, answer.variance

    return Wrapped(), {"x": floats(17, 5)}


constructor(
    "stanza_biaffine",
    "stanza",
    "stanza.models.common.biaffine:DeepBiaffineScorer",
    input1=(2, 17, 40),
    input2=(2, 17, 40),
)(40, 40, 32, 7)
constructor("stanza_relative", "stanza", "stanza.models.common.relative_attn:RelativeAttention", x=(2, 17, 40))(
    40, 5, window=4, num_sinks=1
)


@case("effdet")
def effdet_detector() -> Case:
    from effdet import EfficientDet, get_efficientdet_config

    config = get_efficientdet_config("tf_efficientdet_lite0")
    config.image_size, config.num_classes, config.fpn_cell_repeats = (128, 128), 7, 1
    return EfficientDet(config, pretrained_backbone=False), {"x": floats(1, 3, 128, 128)}


@case("effdet")
def effdet_bifpn() -> Case:
    from effdet.config import get_efficientdet_config
    from effdet.efficientdet import BiFpn

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = get_efficientdet_config("efficientdet_d0")
            config.image_size, config.fpn_channels, config.fpn_cell_repeats = (128, 128), 24, 2
            self.fpn = BiFpn(config, [{"num_chs": n, "reduction": r} for n, r in ((16, 8), (24, 16), (32, 32))])

        def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> Any:
            return self.fpn([p3, p4, p5])

    return Wrapped(), {"p3": floats(2, 16, 16, 16), "p4": floats(2, 24, 8, 8), "p5": floats(2, 32, 4, 4)}


@case("darts")
def darts_tide() -> Case:
    from darts.models.forecasting.tide_model import _TideModule
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    model = _TideModule(
        input_dim=5,
        output_dim=2,
        future_cov_dim=3,
        static_cov_dim=0,
        nr_params=1,
        num_encoder_layers=1,
        num_decoder_layers=1,
        decoder_output_dim=8,
        hidden_size=32,
        temporal_decoder_hidden=16,
        temporal_width_past=4,
        temporal_width_future=4,
        temporal_hidden_size_past=16,
        temporal_hidden_size_future=16,
        use_layer_norm=True,
        dropout=0.1,
        input_chunk_length=24,
        output_chunk_length=6,
        use_reversible_instance_norm=True,
        train_sample_shape={"past_target": (24, 2)},
    )

    def forward(self: Any, past: Tensor, known: Tensor, future: Tensor) -> Any:
        return self.model(PLModuleInput(past, None, known, future, None, None))

    return around(model, forward), {"past": floats(3, 24, 2), "known": floats(3, 24, 3), "future": floats(3, 6, 3)}


@case("darts")
def darts_transformer() -> Case:
    from darts.models.forecasting.transformer_model import _TransformerModule
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    model = _TransformerModule(
        input_size=2,
        output_size=2,
        nr_params=1,
        d_model=40,
        nhead=5,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dim_feedforward=64,
        dropout=0.1,
        activation="relu",
        input_chunk_length=24,
        output_chunk_length=6,
        train_sample_shape={"past_target": (24, 2)},
    )

    def forward(self: Any, past: Tensor) -> Any:
        return self.model(PLModuleInput(past, None, None, None, None, None))

    return around(model, forward), {"past": floats(3, 24, 2)}


@case("recbole")
def recbole_sequence() -> Case:
    from recbole.model.layers import TransformerEncoder

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.positions = nn.Embedding(90, 40, padding_idx=0), nn.Embedding(48, 40)
            self.model = TransformerEncoder(n_layers=2, n_heads=5, hidden_size=40, inner_size=64)

        def forward(self, item_seq: Tensor) -> Any:
            n = item_seq.size(1)
            visible = torch.tril((item_seq != 0)[:, None, None, :].expand(-1, -1, n, -1))
            x = self.items(item_seq) + self.positions(torch.arange(n, device=item_seq.device))
            return self.model(x, torch.where(visible, 0.0, -10000.0), output_all_encoded_layers=False)[-1]

    return Wrapped(), {"item_seq": ids(90, 2, 17)}


constructor(
    "recbole_interest",
    "recbole",
    "recbole.model.layers:SequenceAttLayer",
    queries=(3, 40),
    keys=(3, 24, 40),
    keys_length=lambda: torch.tensor([24, 9, 3]),
)(torch.arange(24).view(1, -1), (160, 32, 16), softmax_stag=True, return_seq_weight=False)
constructor("nnaudio_mel", "nnaudio", "nnAudio.features:MFCC", x=(2, 2000))(
    sr=16000, n_mfcc=13, n_fft=256, hop_length=64, n_mels=24, verbose=False
)
constructor("nnaudio_cqt", "nnaudio", "nnAudio.features:CQT2010v2", x=(2, 4000))(
    sr=16000, hop_length=128, fmin=220, n_bins=36, verbose=False
)


@case("tabpfn")
def tabpfn_v2() -> Case:
    from tabpfn.architectures.tabpfn_v2 import TabPFNV2, TabPFNV2Config

    config = TabPFNV2Config(max_num_classes=3, num_buckets=10, emsize=48, nlayers=2, nhead=4)
    model = TabPFNV2(config=config, n_out=3)

    def forward(self: Any, x: Tensor, y: Tensor) -> Any:
        return self.model(x, y)

    return around(model, forward), {"x": floats(19, 1, 6), "y": torch.randint(0, 3, (12,)).float()}


constructor("tabpfn_block", "tabpfn", "tabpfn.architectures.tabpfn_v2_6:AlongRowAttention", x_BrSE=(5, 9, 48))(
    48, 4, 12
)
constructor(
    "coqui_glow_encoder",
    "coqui-tts",
    "TTS.tts.layers.glow_tts.encoder:Encoder",
    x=lambda: ids(90, 2, 17),
    x_lengths=lambda: torch.tensor([17, 12]),
)(
    num_chars=90,
    out_channels=20,
    hidden_channels=40,
    hidden_channels_dp=32,
    encoder_type="rel_pos_transformer",
    encoder_params={
        "kernel_size": 3,
        "dropout_p": 0.1,
        "num_layers": 2,
        "num_heads": 5,
        "hidden_channels_ffn": 64,
        "input_length": None,
        "rel_attn_window_size": 4,
    },
)
constructor("coqui_hifigan", "coqui-tts", "TTS.vocoder.models.hifigan_generator:HifiganGenerator", x=(2, 20, 17))(
    20, 1, "1", [[1, 3, 5], [1, 3, 5]], [3, 5], [8, 4], 32, [4, 2]
)
constructor(
    "kdiffusion_transformer",
    "k-diffusion",
    "k_diffusion.models:ImageTransformerDenoiserModelV1",
    x=(2, 3, 16, 16),
    sigma=lambda: torch.tensor([0.4, 3.0]),
    class_cond=lambda: torch.tensor([1, 6]),
)(2, 128, 96, 3, 3, (4, 4), num_classes=7)
constructor(
    "kdiffusion_unet",
    "k-diffusion",
    "k_diffusion.models:ImageDenoiserModelV1",
    input=(2, 3, 16, 16),
    sigma=lambda: torch.tensor([0.4, 3.0]),
)(3, 32, (1, 1), (32, 64), (False, True))
constructor(
    "deepchem_molecules",
    "deepchem",
    "deepchem.models.torch_models.layers:MATEncoderLayer",
    x=(2, 9, 40),
    mask=lambda: torch.ones(2, 9),
    adj_matrix=lambda: torch.ones(2, 9, 9),
    distance_matrix=(2, 9, 9),
)(dist_kernel="softmax", h=5, sa_hsize=40, d_input=40, d_hidden=64, d_output=40, n_layers=2, encoder_hsize=40)


@case("deepchem")
def deepchem_graph() -> Case:
    from deepchem.models.torch_models.layers import MolGANEncoderLayer

    model = MolGANEncoderLayer(units=[(32, 24), 40], nodes=5, edges=4)

    def forward(self: Any, adjacency: Tensor, nodes: Tensor) -> Any:
        return self.model([adjacency, nodes])

    return around(model, forward), {"adjacency": floats(2, 9, 9, 4), "nodes": floats(2, 9, 5)}


@case("mattersim")
def mattersim_block() -> Case:
    from mattersim.forcefield.m3gnet.modules import GatedMLP, SmoothBesselBasis

    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.basis = SmoothBesselBasis(r_max=5.0, max_n=4)
            self.mlp = GatedMLP(in_dim=4, out_dims=[32, 32], activation="swish")

        def forward(self, lengths: Tensor) -> Any:
            return self.mlp(self.basis(lengths))

    return Edges(), {"lengths": torch.rand(23) * 4 + 0.5}


constructor(
    "mattersim_angles",
    "mattersim",
    "mattersim.forcefield.m3gnet.modules:SphericalBasisLayer",
    r=lambda: torch.rand(23) * 4 + 0.5,
    theta_val=lambda: torch.rand(23) * 3,
)(max_n=4, max_l=4, cutoff=5.0)


@case("scvi-tools")
def scvi_encoder() -> Case:
    from scvi.nn import Encoder

    model = Encoder(50, 10, n_cat_list=[3], n_layers=2, n_hidden=32)

    def forward(self: Any, x: Tensor, batch_index: Tensor) -> Any:
        mean, variance, _ = self.model(torch.log1p(x), batch_index)
        return mean, variance

    return around(model, forward), {"x": torch.rand(4, 50) * 20, "batch_index": torch.tensor([[0], [1], [2], [1]])}


@case("scvi-tools")
def scvi_decoder() -> Case:
    from scvi.nn import DecoderSCVI

    model = DecoderSCVI(10, 50, n_cat_list=[3], n_layers=2, n_hidden=32)

    def forward(self: Any, z: Tensor, library: Tensor, batch_index: Tensor) -> Any:
        return self.model("gene-cell", z, library, batch_index)

    return around(model, forward), {
        "z": floats(4, 10),
        "library": torch.rand(4, 1) * 3,
        "batch_index": torch.tensor([[0], [1], [2], [1]]),
    }
