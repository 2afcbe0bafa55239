"""The seventh draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the former four: for each kind, of the packages that import with this version of PyTorch, the most downloaded
that had not been tried here, one or two modules of each. Only calls of the modules in PyTorch came before.
seventh.txt has their versions.
"""

from argparse import Namespace

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats


@case("compressed-tensors")
def compressed_int8() -> Case:
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    layers = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 24))
    arguments = QuantizationArgs(num_bits=8, strategy="channel", symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    apply_quantization_config(layers, QuantizationConfig(config_groups={"all": scheme}))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.weight_scale.data.copy_(layer.weight.detach().abs().amax(1, keepdim=True) / 127)
    return layers, {"input": floats(2, 11, 40)}


@case("compressed-tensors")
def compressed_hadamard() -> Case:
    from compressed_tensors.transform import TransformArgs, TransformConfig, TransformScheme, apply_transform_config

    layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    turned = [TransformArgs(targets=["0"], location="input"), TransformArgs(targets=["2"], location="output")]
    config = TransformConfig(config_groups={"v": TransformScheme(type="hadamard", apply=turned)})
    apply_transform_config(layers, config)
    return layers, {"input": floats(2, 11, 64)}


constructor(
    "docling_encoder",
    "docling-ibm-models",
    "docling_ibm_models.tableformer.models.table04_rs.encoder04_rs:Encoder04",
    images=lambda: torch.rand(2, 3, 64, 64),
)(4)


constructor(
    "docling_cells",
    "docling-ibm-models",
    "docling_ibm_models.tableformer.models.table04_rs.bbox_decoder_rs:CellAttention",
    encoder_out=(1, 49, 32),
    decoder_hidden=(5, 24),
    language_out=(5, 16),
)(32, 24, 16, 20)


constructor("noisereduce_gate", "noisereduce", "noisereduce.torchgate:TorchGate", x=(2, 8000))(8000)


constructor(
    "noisereduce_moving",
    "noisereduce",
    "noisereduce.torchgate:TorchGate",
    x=(2, 8000),
)(8000, nonstationary=True, n_fft=512)


constructor("setfit_head", "setfit", "setfit:SetFitHead", features=(5, 24))(24, 3)


@case("unbabel-comet")
def comet_layers() -> Case:
    from comet.modules import LayerwiseAttention

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = LayerwiseAttention(3, layer_norm=True, layer_transformation="sparsemax")

        def forward(self, first: Tensor, second: Tensor, third: Tensor, attention_mask: Tensor) -> Tensor:
            return self.mix([first, second, third], attention_mask)

    mask = torch.tensor([[1] * 11, [1] * 7 + [0] * 4])
    return Mix(), {name: floats(2, 11, 24) for name in ("first", "second", "third")} | {"attention_mask": mask}


constructor("comet_estimator", "unbabel-comet", "comet.modules:FeedForward", in_features=(5, 24))(
    24, hidden_sizes=[48, 32]
)


@case("sentence-transformers")
def sentence_pooling() -> Case:
    from sentence_transformers.models import Dense, Normalize, Pooling

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.Sequential(Pooling(24, pooling_mode="mean"), Dense(24, 16), Normalize())

        def forward(self, token_embeddings: Tensor, attention_mask: Tensor) -> Tensor:
            features = {"token_embeddings": token_embeddings, "attention_mask": attention_mask}
            return self.steps(features)["sentence_embedding"]

    mask = torch.tensor([[1] * 11, [1] * 7 + [0] * 4])
    return Heads(), {"token_embeddings": floats(2, 11, 24), "attention_mask": mask}


constructor(
    "anomalib_draem",
    "anomalib",
    "anomalib.models.image.draem.torch_model:DiscriminativeSubNetwork",
    batch=(2, 6, 32, 64),
)(6, 2, 8)


constructor(
    "anomalib_pdn",
    "anomalib",
    "anomalib.models.image.efficient_ad.torch_model:SmallPatchDescriptionNetwork",
    x=lambda: torch.rand(2, 3, 64, 72),
)(24)


@case("snntorch")
def snntorch_leaky() -> Case:
    import snntorch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.lif1 = nn.Linear(24, 40), snntorch.Leaky(beta=0.9)
            self.fc2, self.lif2 = nn.Linear(40, 4), snntorch.Leaky(beta=0.9)

        def forward(self, x: Tensor, mem1: Tensor, mem2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            return spk2, mem1, mem2

    return Net(), {"x": floats(5, 24), "mem1": floats(5, 40), "mem2": floats(5, 4)}


constructor("kan_splines", "pykan", "kan:KAN", x=(20, 4))(
    width=[4, 5, 1], grid=5, k=3, auto_save=False, symbolic_enabled=False
)


constructor("deepxde_network", "deepxde", "deepxde.nn.pytorch:PFNN", inputs=(20, 2))(
    [2, [24, 24], [24, 24], 2], "tanh", "Glorot normal"
)


@case("deepxde")
def deepxde_operator() -> Case:
    from deepxde.nn.pytorch import DeepONetCartesianProd

    net = DeepONetCartesianProd([30, 40, 24], [2, 40, 24], "relu", "Glorot normal")
    return around(net, lambda self, branch, trunk: self.model((branch, trunk))), {
        "branch": floats(5, 30),
        "trunk": floats(11, 2),
    }


@case("hummingbird-ml")
def hummingbird_forest() -> Case:
    import numpy as np
    from hummingbird.ml import convert
    from sklearn.ensemble import RandomForestClassifier

    drawn = np.random.default_rng(0)
    rows = drawn.random((200, 9), np.float32)
    forest = RandomForestClassifier(10, max_depth=5, random_state=0).fit(rows, drawn.integers(3, size=200))
    trees = convert(forest, "torch").model
    return around(trees, lambda self, rows: self.model(rows)), {"rows": torch.rand(20, 9)}


constructor(
    "ogb_atoms",
    "ogb",
    "ogb.graphproppred.mol_encoder:AtomEncoder",
    x=lambda: torch.stack([torch.randint(0, size, (7,)) for size in (119, 4, 12, 12, 10, 6, 6, 2, 2)], 1),
)(24)


@case("pykeen")
def pykeen_rotate() -> Case:
    from pykeen.models import RotatE
    from pykeen.triples import TriplesFactory

    drawn = torch.randint(0, 7, (40, 3)) % torch.tensor([7, 3, 7])
    drawn[:7, 0], drawn[:3, 1] = torch.arange(7), torch.arange(3)
    facts = TriplesFactory(drawn, {str(n): n for n in range(7)}, {str(n): n for n in range(3)})
    model = RotatE(triples_factory=facts, embedding_dim=24, random_seed=0)
    return around(model, lambda self, triples: self.model.score_hrt(triples)), {"triples": drawn[:5]}


@case("mmcv-lite")
def mmcv_layer() -> Case:
    from mmcv.cnn.bricks.transformer import BaseTransformerLayer

    layer = BaseTransformerLayer(
        attn_cfgs={"type": "MultiheadAttention", "embed_dims": 40, "num_heads": 5},
        ffn_cfgs={"type": "FFN", "embed_dims": 40, "feedforward_channels": 64, "num_fcs": 2},
        operation_order=("self_attn", "norm", "cross_attn", "norm", "ffn", "norm"),
    )
    return around(layer, lambda self, query, memory: self.model(query, memory, memory)), {
        "query": floats(9, 2, 40),
        "memory": floats(13, 2, 40),
    }


constructor("mmcv_attention", "mmcv-lite", "mmcv.cnn.bricks:GeneralizedAttention", x_input=(2, 36, 12, 16))(
    36, num_heads=4
)


_ARM = """<robot name="arm">
<link name="base"/><link name="a"/><link name="b"/><link name="c"/><link name="hand"/>
<joint name="j1" type="revolute"><parent link="base"/><child link="a"/><origin xyz="0 0 0.3"/><axis xyz="0 0 1"/>
<limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
<joint name="j2" type="revolute"><parent link="a"/><child link="b"/><origin xyz="0.1 0 0.4" rpy="0 1.5 0"/>
<axis xyz="0 1 0"/><limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
<joint name="j3" type="prismatic"><parent link="b"/><child link="c"/><origin xyz="0 0.2 0.2"/><axis xyz="1 0 0"/>
<limit lower="0" upper="1" effort="1" velocity="1"/></joint>
<joint name="j4" type="fixed"><parent link="c"/><child link="hand"/><origin xyz="0 0 0.1" rpy="0.5 0 0"/></joint>
</robot>"""


@case("pytorch-kinematics")
def kinematics_arm() -> Case:
    import pytorch_kinematics

    chain = pytorch_kinematics.build_serial_chain_from_urdf(_ARM, "hand")

    class Arm(nn.Module):
        def forward(self, angles: Tensor) -> Tensor:
            return chain.forward_kinematics(angles).get_matrix()

    return Arm(), {"angles": floats(5, 3)}


@case("pypose")
def pypose_rotation() -> Case:
    import pypose

    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 3)

        def forward(self, features: Tensor, points: Tensor) -> Tensor:
            return pypose.so3(self.layer(features)).Exp().Act(points)

    return Turn(), {"features": floats(5, 24), "points": floats(5, 3)}


constructor(
    "sbi_transformer",
    "sbi",
    "sbi.neural_nets.embedding_nets:TransformerEmbedding",
    input=(2, 11, 40),
)(feature_space_dim=40, num_attention_heads=5, num_key_value_heads=5, num_hidden_layers=2, intermediate_size=64)


@case("sbi")
def sbi_trials() -> Case:
    from sbi.neural_nets.embedding_nets import FCEmbedding, PermutationInvariantEmbedding

    return PermutationInvariantEmbedding(FCEmbedding(9, output_dim=16), 16), {"x": floats(2, 11, 9)}


@case("pytorch-toolbelt")
def toolbelt_decoder() -> Case:
    from pytorch_toolbelt.modules import BiFPNDecoder
    from pytorch_toolbelt.modules.interfaces import FeatureMapsSpecification

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.steps = nn.ModuleList([nn.Conv2d(8, 8, 3, 2, 1) for _ in range(3)])
            self.decoder = BiFPNDecoder(FeatureMapsSpecification([8, 8, 8, 8], [1, 2, 4, 8]), 16, 2)

        def forward(self, image: Tensor) -> Tensor:
            maps = [self.first(image)]
            for step in self.steps:
                maps.append(step(maps[-1]))
            return self.decoder(maps)[0]

    return Decoder(), {"image": torch.rand(2, 3, 32, 64)}


@case("speechtokenizer")
def speechtokenizer_codec() -> Case:
    from speechtokenizer import SpeechTokenizer

    return SpeechTokenizer(
        {
            "n_filters": 8,
            "dimension": 24,
            "strides": [4, 2],
            "lstm_layers": 2,
            "bidirectional": True,
            "dilation_base": 2,
            "residual_kernel_size": 3,
            "n_residual_layers": 1,
            "activation": "ELU",
            "sample_rate": 16000,
            "n_q": 3,
            "semantic_dimension": 16,
            "codebook_size": 32,
        }
    ), {"x": floats(2, 1, 200)}


@case("audioseal")
def audioseal_detector() -> Case:
    from audioseal.libs.audiocraft.modules.seanet import SEANetEncoderKeepDimension
    from audioseal.models import AudioSealDetector

    encoder = SEANetEncoderKeepDimension(
        dimension=24, n_filters=8, ratios=[4, 2], n_residual_layers=1, lstm=2, output_dim=16, causal=False
    )
    return AudioSealDetector(encoder, nbits=8), {"x": floats(2, 1, 200)}


@case("momentfm")
def moment_reconstruction() -> Case:
    from momentfm.models.moment import MOMENTPipeline

    config = Namespace(
        task_name="reconstruction",
        transformer_type="encoder_only",
        transformer_backbone="google/flan-t5-small",
        t5_config={"d_model": 40, "d_kv": 8, "d_ff": 64, "num_heads": 5, "num_layers": 2, "vocab_size": 60},
        d_model=40,
        seq_len=64,
        patch_len=8,
        patch_stride_len=8,
        device="cpu",
    )
    model = MOMENTPipeline(config)
    mask = torch.tensor([[1.0] * 64, [0.0] * 16 + [1.0] * 48])
    return around(
        model, lambda self, x_enc, input_mask: self.model(x_enc=x_enc, input_mask=input_mask).reconstruction
    ), {
        "x_enc": floats(2, 3, 64),
        "input_mask": mask,
    }


constructor("tcn_causal", "pytorch-tcn", "pytorch_tcn:TCN", x=(2, 4, 40))(4, [16, 16, 16], use_skip_connections=True)


constructor("borzoi_attention", "borzoi-pytorch", "borzoi_pytorch.pytorch_borzoi_transformer:Attention", x=(2, 20, 40))(
    40, heads=4, dim_key=8, dim_value=10, num_rel_pos_features=32
)


constructor(
    "ablang_model",
    "ablang2",
    "ablang2.models.ablang2.ablang:AbLang",
    tokens=lambda: torch.tensor([[0, 5, 9, 3, 12, 7, 4, 8, 22], [0, 3, 3, 8, 22, 21, 21, 21, 21]]),
)(26, 40, 5, 2, 21, 23)


@case("titans-pytorch")
def titans_attention() -> Case:
    from titans_pytorch.mac_transformer import SegmentedAttention

    layer = SegmentedAttention(40, 8, num_persist_mem_tokens=4, dim_head=8, heads=5)
    return around(layer, lambda self, seq: self.model(seq)[0]), {"seq": floats(2, 22, 40)}


@case("titans-pytorch")
def titans_memory() -> Case:
    from titans_pytorch import NeuralMemory

    return around(NeuralMemory(40, chunk_size=4), lambda self, seq: self.model(seq)[0]), {"seq": floats(2, 22, 40)}


@case("replay-rec")
def replay_sasrec() -> Case:
    from replay.data import FeatureHint, FeatureType
    from replay.data.nn import TensorFeatureInfo, TensorSchema
    from replay.nn.sequential import SasRec

    items = TensorFeatureInfo(
        "item_id",
        FeatureType.CATEGORICAL,
        is_seq=True,
        feature_hint=FeatureHint.ITEM_ID,
        cardinality=60,
        embedding_dim=40,
        padding_value=60,
    )
    model = SasRec.from_params(TensorSchema([items]), 40, 5, 2, max_sequence_length=32)
    body = around(model, lambda self, item_id, padding_mask: self.model.body({"item_id": item_id}, padding_mask))
    mask = torch.tensor([[True] * 11, [False] * 4 + [True] * 7])
    return body, {"item_id": torch.randint(0, 60, (2, 11)), "padding_mask": mask}


@case("ibm-fms")
def fms_llama() -> Case:
    from fms.models.llama import LLaMA, LLaMAConfig

    model = LLaMA(LLaMAConfig(60, 40, nheads=5, nlayers=2, multiple_of=8, max_expected_seq_len=64))
    model.reset_parameters()
    model.post_init()
    return model, {"x": torch.randint(0, 60, (2, 11))}


@case("ibm-fms")
def fms_roberta() -> Case:
    from fms.models.roberta import RoBERTa, RoBERTaConfig

    model = RoBERTa(RoBERTaConfig(60, 40, nheads=5, nlayers=2, max_pos=64))
    model.reset_parameters()
    return model, {"x": torch.randint(4, 60, (2, 11))}


constructor("frame_transformer", "pytorch-frame", "torch_frame.nn:FTTransformerConvs", x=(5, 9, 40))(
    40, num_layers=2, nhead=5
)


constructor("frame_excelformer", "pytorch-frame", "torch_frame.nn:ExcelFormerConv", x=(5, 9, 40))(40, 9, 5)


@case("geoopt")
def geoopt_ball() -> Case:
    import geoopt

    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ball = geoopt.PoincareBall(c=1.0)
            self.layer = nn.Linear(24, 9)
            self.centres = geoopt.ManifoldParameter(self.ball.random(4, 9, std=0.3), manifold=self.ball)

        def forward(self, features: Tensor) -> Tensor:
            return self.ball.dist(self.ball.expmap0(self.layer(features))[:, None], self.centres)

    return Distances(), {"features": floats(5, 24)}


@case("geomloss")
def geomloss_sinkhorn() -> Case:
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=0.05)
    return around(loss, lambda self, x, y: self.model(x, y)), {"x": floats(11, 3), "y": floats(13, 3)}


@case("torchcde")
def torchcde_spline() -> Case:
    import torchcde

    class Path(nn.Module):
        def forward(self, series: Tensor, times: Tensor) -> Tensor:
            coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(series)
            path = torchcde.CubicSpline(coefficients)
            return torch.stack([path.evaluate(time) for time in times], -2)

    return Path(), {"series": floats(2, 11, 4), "times": torch.tensor([0.5, 2.2, 3.0])}


@case("FrEIA")
def freia_coupling() -> Case:
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import AllInOneBlock

    net = SequenceINN(9)
    for _ in range(3):
        net.append(
            AllInOneBlock,
            subnet_constructor=lambda size, out: nn.Sequential(nn.Linear(size, 24), nn.ReLU(), nn.Linear(24, out)),
        )
    return net, {"x_or_z": floats(5, 9)}


@case("nflows")
def nflows_density() -> Case:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms import (
        CompositeTransform,
        MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
        RandomPermutation,
    )

    steps = [RandomPermutation(9), MaskedPiecewiseRationalQuadraticAutoregressiveTransform(9, 24, tails="linear")]
    flow = Flow(CompositeTransform(steps), StandardNormal([9]))
    return around(flow, lambda self, inputs: self.model.log_prob(inputs)), {"inputs": floats(5, 9)}


@case("d3rlpy")
def d3rlpy_decisions() -> Case:
    from d3rlpy.models.torch.transformers import GPT2

    return GPT2(40, 64, 64, 5, 32, 2, 0.1, 0.1, 0.1, nn.GELU()), {
        "x": floats(2, 11, 40),
        "attention_mask": torch.ones(2, 11),
    }


constructor(
    "brevitas_linear",
    "brevitas",
    "brevitas.nn:QuantLinear",
    input=(2, 11, 24),
)(24, 16, True)
