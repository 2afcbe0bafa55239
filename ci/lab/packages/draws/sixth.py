"""The sixth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the former three: for each kind, of the packages that import with this version of PyTorch, the most downloaded
that had not been tried here, one or two modules of each. Only calls of the modules in PyTorch came before.
sixth.txt has their versions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, case, constructor, floats

constructor("lhotse_filter_bank", "lhotse", "lhotse.features.kaldi.layers:Wav2LogFilterBank", x=(2, 4000))()


constructor("lhotse_cepstra", "lhotse", "lhotse.features.kaldi.layers:Wav2MFCC", x=(2, 4000))()


constructor("pyod_deep_svdd", "pyod", "pyod.models.deep_svdd:InnerDeepSVDD", x=(5, 9))(
    9, False, [24, 16], "relu", "sigmoid", 0.2, 0.1
)


constructor(
    "pyod_anomaly_transformer", "pyod", "pyod.models.ts_anomaly_transformer:_AnomalyTransformerModel", x=(2, 30, 4)
)(4, 30, 40, 5, 2)


constructor(
    "sktime_transformer",
    "sktime",
    "sktime.networks.mvts_transformer:TSTransformerEncoder",
    X=(2, 19, 4),
    padding_masks=lambda: torch.tensor([[True] * 19, [True] * 12 + [False] * 7]),
)(4, 64, 40, 5, 2, 64)


constructor(
    "separator_mel_roformer",
    "audio-separator",
    "audio_separator.separator.uvr_lib_v5.roformer.mel_band_roformer:MelBandRoformer",
    raw_audio=(2, 4000),
)(
    32, depth=1, num_bands=12, dim_head=8, heads=4, flash_attn=False, dim_freqs_in=129, stft_n_fft=256,
    stft_hop_length=64, stft_win_length=256, time_transformer_depth=1, freq_transformer_depth=1,
)  # fmt: skip


@case("audio-separator")
def separator_tdf() -> Case:
    from audio_separator.separator.uvr_lib_v5.tfc_tdf_v3 import TFC_TDF_net
    from ml_collections import ConfigDict

    config = ConfigDict(
        {
            "audio": {"dim_f": 128, "hop_length": 64, "n_fft": 256, "num_channels": 2},
            "training": {"instruments": ["vocals", "other"], "target_instrument": None},
            "model": {
                "norm": "InstanceNorm",
                "act": "gelu",
                "num_subbands": 2,
                "num_scales": 2,
                "scale": [2, 2],
                "num_blocks_per_scale": 1,
                "num_channels": 16,
                "growth": 8,
                "bottleneck_factor": 4,
            },
        }
    )
    return TFC_TDF_net(config, "cpu"), {"x": floats(2, 2, 64 * 15)}


@case("smplx")
def smplx_body() -> Case:
    from smplx import SMPLLayer
    from smplx.utils import Struct

    drawn, vertices = np.random.default_rng(0), 6000
    weights = drawn.random((vertices, 24)).astype(np.float32)
    parents = np.array([-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19, 20, 21])
    data = Struct(
        v_template=drawn.standard_normal((vertices, 3)).astype(np.float32),
        shapedirs=drawn.standard_normal((vertices, 3, 10)).astype(np.float32),
        posedirs=drawn.standard_normal((vertices, 3, 207)).astype(np.float32) / 9,
        J_regressor=weights.T / weights.sum(0)[:, None],
        weights=weights / weights.sum(1, keepdims=True),
        kintree_table=np.stack([parents, np.arange(24)]),
        f=drawn.integers(0, vertices, (99, 3)),
    )

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = SMPLLayer(
                "",
                data_struct=data,
                vertex_ids={
                    "nose": 331,
                    "reye": 2800,
                    "leye": 5100,
                    "rear": 9,
                    "lear": 8,
                    "LBigToe": 7,
                    "LSmallToe": 6,
                    "LHeel": 5,
                    "RBigToe": 4,
                    "RSmallToe": 3,
                    "RHeel": 2,
                    "lthumb": 1,
                    "lindex": 0,
                    "lmiddle": 11,
                    "lring": 12,
                    "lpinky": 13,
                    "rthumb": 14,
                    "rindex": 15,
                    "rmiddle": 16,
                    "rring": 17,
                    "rpinky": 18,
                },
            )

        def forward(self, betas: Tensor, body_pose: Tensor) -> tuple[Tensor, Tensor]:
            posed = self.model(betas=betas, body_pose=body_pose)
            return posed.vertices, posed.joints

    from smplx.lbs import batch_rodrigues

    return Body(), {"betas": floats(2, 10), "body_pose": batch_rodrigues(floats(46, 3)).view(2, 23, 3, 3)}


@case("ttach")
def ttach_segmentation() -> Case:
    import ttach

    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    flips = ttach.Compose([ttach.HorizontalFlip(), ttach.Rotate90([0, 180]), ttach.Scale([1, 2])])
    return ttach.SegmentationTTAWrapper(layers, flips, merge_mode="mean"), {"image": floats(2, 3, 24, 32)}


constructor("tianshou_dueling", "tianshou", "tianshou.utils.net.common:Net", obs=(5, 9))(
    state_shape=9, action_shape=4, hidden_sizes=[24], num_atoms=11, dueling_param=({}, {}), softmax=True
)


constructor("tianshou_recurrent", "tianshou", "tianshou.utils.net.common:Recurrent", obs=(2, 11, 9))(
    layer_num=2, state_shape=9, action_shape=4, hidden_layer_size=24
)


constructor("auraloss_stft", "auraloss", "auraloss.freq:MultiResolutionSTFTLoss", x=(2, 1, 4000), y=(2, 1, 4000))(
    [256, 512], [64, 128], [256, 512]
)


constructor("torchfcpe_conformer", "torchfcpe", "torchfcpe.models:CFNaiveMelPE", x=(2, 19, 24))(24, 30, 40, 2, 5)


constructor("torchfcpe_linear", "torchfcpe", "torchfcpe.models:CFNaiveMelPE", x=(2, 19, 24))(
    24, 30, 40, 2, 5, use_fa_norm=True, use_harmonic_emb=True
)


constructor("ctgan_generator", "ctgan", "ctgan.synthesizers.ctgan:Generator", input_=(5, 16))(16, (24, 24), 13)


constructor("ctgan_discriminator", "ctgan", "ctgan.synthesizers.ctgan:Discriminator", input_=(20, 13))(13, (24, 24))


@case("lycoris-lora")
def lycoris_kronecker() -> Case:
    from lycoris import create_lycoris

    layers = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 40))
    adapted = create_lycoris(layers, 1.0, linear_dim=4, linear_alpha=2.0, algo="lokr")
    adapted.apply_to()
    layers.adapters = adapted  # its weights are the layers'
    return nn.Sequential(layers[0], layers[1], layers[2]), {"input": floats(2, 11, 40)}


constructor(
    "boxmot_osnet",
    "boxmot",
    "boxmot.reid.backbones.families.osnet.variants:osnet_x0_25",
    x=lambda: torch.rand(2, 3, 64, 32),
)(9, pretrained=False)


constructor(
    "pypots_saits",
    "pypots",
    "pypots.nn.modules.saits.backbone:BackboneSAITS",
    X=(2, 24, 5),
    missing_mask=lambda: (torch.rand(2, 24, 5) > 0.3).float(),
)(24, 5, 2, 40, 5, 8, 8, 64, 0.1, 0.1)


constructor("pypots_timesnet", "pypots", "pypots.nn.modules.timesnet.backbone:BackboneTimesNet", X=(2, 24, 16))(
    1, 24, 0, 3, 16, 16, 2
)


@case("alias-free-torch")
def alias_free_activation() -> Case:
    from alias_free_torch import Activation1d

    return Activation1d(nn.SiLU()), {"x": floats(2, 8, 50)}


@case("alias-free-torch")
def alias_free_image() -> Case:
    from alias_free_torch import Activation2d

    return Activation2d(nn.SiLU()), {"x": floats(2, 8, 20, 24)}


@case("sevenn")
def sevenn_convolution() -> Case:
    from e3nn.o3 import Irreps
    from sevenn.nn.convolution import IrrepsConvolution

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = IrrepsConvolution(Irreps("8x0e+4x1o"), Irreps("1x0e+1x1o"), Irreps("8x0e+4x1o"), [6, 16])
            self.layer.instantiate()

        def forward(self, x: Tensor, edge_attr: Tensor, edge_embedding: Tensor, edge_index: Tensor) -> Tensor:
            data = {"x": x, "edge_attr": edge_attr, "edge_embedding": edge_embedding, "edge_index": edge_index}
            return self.layer(data)["x"]

    edges = torch.randint(0, 7, (2, 30))
    return Convolution(), {
        "x": floats(7, 20),
        "edge_attr": floats(30, 4),
        "edge_embedding": floats(30, 6),
        "edge_index": edges,
    }


def _lens(**settings: Any) -> Case:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=2,
        d_model=40,
        n_ctx=64,
        d_head=8,
        n_heads=5,
        d_mlp=64,
        d_vocab=60,
        act_fn="gelu",
        device="cpu",
        **settings,
    )
    return HookedTransformer(config), {"input": torch.randint(0, 60, (2, 11))}


@case("transformer-lens")
def lens_rotary() -> Case:
    return _lens(positional_embedding_type="rotary", rotary_dim=8, normalization_type="RMS", gated_mlp=True)


@case("transformer-lens")
def lens_shortformer() -> Case:
    return _lens(positional_embedding_type="shortformer", normalization_type="LN")


@case("sae-lens")
def sae_top_k() -> Case:
    from sae_lens import TopKSAE, TopKSAEConfig

    return TopKSAE(TopKSAEConfig(d_in=24, d_sae=64, k=7)), {"x": floats(5, 24)}


@case("sae-lens")
def sae_jump() -> Case:
    from sae_lens import JumpReLUSAE, JumpReLUSAEConfig

    return JumpReLUSAE(JumpReLUSAEConfig(d_in=24, d_sae=64)), {"x": floats(5, 24)}


@case("bigvgan")
def bigvgan_generator() -> Case:
    from bigvgan.bigvgan import BigVGAN
    from bigvgan.env import AttrDict

    settings = AttrDict(
        num_mels=20, upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], upsample_initial_channel=32, resblock="1",
        resblock_kernel_sizes=[3, 7], resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]], activation="snakebeta",
        snake_logscale=True, use_tanh_at_final=False, use_bias_at_final=False,
    )  # fmt: skip
    return BigVGAN(settings), {"x": floats(2, 20, 15)}


@case("nequip")
def nequip_edges() -> Case:
    from nequip.nn.embedding import (
        BesselEdgeLengthEncoding,
        EdgeLengthNormalizer,
        PolynomialCutoff,
        SphericalHarmonicEdgeAttrs,
    )

    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normalize = EdgeLengthNormalizer(5.0, ["C", "H"])
            self.bessel = BesselEdgeLengthEncoding(PolynomialCutoff(6), irreps_in=self.normalize.irreps_out)
            self.harmonics = SphericalHarmonicEdgeAttrs(2, irreps_in=self.bessel.irreps_out)

        def forward(self, pos: Tensor, edge_index: Tensor, atom_types: Tensor) -> tuple[Tensor, Tensor]:
            data = self.normalize({"pos": pos, "edge_index": edge_index, "atom_types": atom_types})
            data = self.harmonics(self.bessel(data))
            return data["edge_embedding"], data["edge_attrs"]

    edges = torch.stack([torch.randint(0, 7, (30,)), torch.randint(0, 7, (30,))])
    edges[1] = torch.where(edges[0] == edges[1], (edges[1] + 1) % 7, edges[1])
    return Edges(), {"pos": floats(7, 3), "edge_index": edges, "atom_types": torch.randint(0, 2, (7,))}


constructor(
    "pytabkit_ft_transformer",
    "pytabkit",
    "pytabkit.models.nn_models.rtdl_resnet:FT_Transformer",
    x=lambda: torch.cat([floats(5, 3), torch.randint(0, 4, (5, 2)).float()], 1),
)(
    d_in=3, categories=[4, 6], token_bias=True, n_layers=2, d_token=40, n_heads=5, d_ffn_factor=2.0,
    attention_dropout=0.1, ffn_dropout=0.1, residual_dropout=0.0, activation="reglu", prenormalization=True,
    initialization="kaiming", kv_compression=None, kv_compression_sharing=None, d_out=3, regression=False,
    categorical_indicator=torch.tensor([False, False, False, True, True]),
)  # fmt: skip


constructor(
    "retinaface_context", "retina-face", "retinaface.model.retinaface_pth_model:ContextModule", x=(2, 32, 20, 24)
)(32)


constructor("retinaface_unit", "retina-face", "retinaface.model.retinaface_pth_model:ResidualUnit", x=(2, 32, 20, 24))(
    32, 16, 2, True
)


@case("optimum-quanto")
def quanto_int8() -> Case:
    from optimum.quanto import freeze, qint8, quantize

    layers = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 24))
    quantize(layers, weights=qint8)
    freeze(layers)
    return layers, {"input": floats(2, 11, 40)}


constructor("tsai_tst", "tsai", "tsai.models.TST:TST", x=(2, 4, 30))(
    4, 3, 30, n_layers=2, d_model=40, n_heads=5, d_ff=64
)


constructor("tsai_inception", "tsai", "tsai.models.InceptionTime:InceptionTime", x=(2, 4, 50))(4, 3, nf=8)


@case("tsai")
def tsai_minirocket() -> Case:
    from tsai.models.MINIROCKET_Pytorch import MiniRocketFeatures

    features = MiniRocketFeatures(3, 40, num_features=336, random_state=0)
    features.fit(floats(20, 3, 40))
    return features, {"x": floats(2, 3, 40)}


constructor(
    "tabular_gated_features",
    "pytorch-tabular",
    "pytorch_tabular.models.common.layers:GatedFeatureLearningUnit",
    x=(5, 9),
)(9, 3, dropout=0.1)


@case("kraken")
def kraken_recognition() -> Case:
    from kraken.lib.vgsl.model import TorchVGSLModel

    net = TorchVGSLModel(vgsl="[1,32,0,1 Cr3,3,8 Mp2,2 Cr3,3,16 Mp2,2 S1(1x0)1,3 Lbx24 Do O1c20]")
    return net, {"x": torch.rand(2, 1, 32, 80)}


@case("chemprop")
def chemprop_messages() -> Case:
    from chemprop.data import BatchMolGraph
    from chemprop.nn import BondMessagePassing

    class Messages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = BondMessagePassing(12, 5, 24, depth=3)

        def forward(self, atoms: Tensor, bonds: Tensor, edge_index: Tensor, reverse: Tensor) -> Tensor:
            graph = BatchMolGraph.__new__(BatchMolGraph)
            graph.V, graph.E, graph.edge_index, graph.rev_edge_index = atoms, bonds, edge_index, reverse
            return self.layer(graph)

    edges = torch.randint(0, 7, (2, 10))
    edges = torch.stack([edges, edges.flip(0)], 2).flatten(1)
    reverse = torch.arange(20).view(-1, 2).flip(1).flatten()
    return Messages(), {"atoms": floats(7, 12), "bonds": floats(20, 5), "edge_index": edges, "reverse": reverse}


constructor("passt_small", "hear21passt", "hear21passt.models.passt:PaSST", x=(2, 1, 32, 64))(
    img_size=(32, 96), patch_size=16, stride=16, num_classes=7, embed_dim=40, depth=2, num_heads=5
)


constructor(
    "boltz_pairformer",
    "boltz",
    "boltz.model.layers.pairformer:PairformerLayer",
    s=(2, 11, 24),
    z=(2, 11, 11, 16),
    mask=lambda: torch.tensor([[1.0] * 11, [1.0] * 8 + [0.0] * 3]),
    pair_mask=lambda: torch.ones(2, 11, 11),
)(24, 16, 4, pairwise_head_width=8, pairwise_num_heads=2, v2=True)


@case("boltz")
def boltz_positions() -> Case:
    from boltz.model.modules.encodersv2 import RelativePositionEncoder

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RelativePositionEncoder(16)

        def forward(self, residues: Tensor, chains: Tensor) -> Tensor:
            names = ("entity_id", "asym_id")
            feats = dict.fromkeys(names, chains) | {"residue_index": residues, "token_index": residues}
            return self.layer(feats | {"sym_id": chains, "cyclic_period": torch.zeros_like(chains)})

    return Pairs(), {"residues": torch.randint(0, 40, (2, 11)), "chains": torch.randint(0, 3, (2, 11))}


constructor(
    "openpoints_attention", "openpoints", "openpoints.models.backbone.pct:Point_Transformer_Last", x=(2, 32, 40)
)(32)


constructor(
    "point_transformer",
    "point-transformer-pytorch",
    "point_transformer_pytorch:PointTransformerLayer",
    x=(2, 16, 24),
    pos=(2, 16, 3),
    mask=lambda: torch.tensor([[True] * 16, [True] * 12 + [False] * 4]),
)(dim=24, num_neighbors=6)


@case("pytorch-widedeep")
def widedeep_tab_transformer() -> Case:
    from pytorch_widedeep.models import TabTransformer

    columns = {"job": 0, "town": 1, "age": 2, "hours": 3}
    model = TabTransformer(
        columns,
        cat_embed_input=[("job", 6), ("town", 4)],
        continuous_cols=["age", "hours"],
        input_dim=40,
        n_heads=5,
        n_blocks=2,
    )
    return model, {"X": torch.cat([torch.randint(1, 4, (5, 2)).float(), floats(5, 2)], 1)}
