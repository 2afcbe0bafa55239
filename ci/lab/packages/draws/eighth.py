"""The eighth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the former five: for each kind, of the packages that import with this version of PyTorch, the most downloaded
that had not been tried here, one or two modules of each. Only calls of the modules in PyTorch came before.
eighth.txt has their versions.
"""

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats, ids


@case("autogluon.tabular")
def autogluon_mitra() -> Case:
    from autogluon.tabular.models.mitra._internal.models.tab2d import Tab2D

    model = Tab2D(40, 3, 2, 5, "CLASSIFICATION", False, "", device="cpu")
    return around(
        model,
        lambda self, x_support, y_support, x_query: self.model(
            x_support,
            y_support,
            x_query,
            torch.zeros_like(x_support[:, 0], dtype=torch.bool),
            torch.zeros_like(y_support, dtype=torch.bool),
            torch.zeros_like(x_query[..., 0], dtype=torch.bool),
        ),
    ), {"x_support": floats(2, 11, 6), "y_support": torch.randint(0, 3, (2, 11)), "x_query": floats(2, 7, 6)}


@case("piper-tts")
def piper_encoder() -> Case:
    from piper.train.vits.models import TextEncoder

    return TextEncoder(60, 16, 40, 64, 5, 2, 3, 0.1), {
        "x": ids(60, 2, 13),
        "x_lengths": torch.tensor([13, 9]),
    }


@case("piper-tts")
def piper_flow() -> Case:
    from piper.train.vits.models import ResidualCouplingBlock

    flow = ResidualCouplingBlock(8, 16, 5, 1, 2)
    return around(flow, lambda self, x, x_mask: self.model(x, x_mask, reverse=True)), {
        "x": floats(2, 8, 21),
        "x_mask": torch.ones(2, 1, 21),
    }


@case("voxcpm")
def voxcpm_language() -> Case:
    from voxcpm.modules.minicpm4 import MiniCPM4Config, MiniCPMModel

    config = MiniCPM4Config(
        bos_token_id=1,
        eos_token_id=2,
        hidden_size=40,
        intermediate_size=64,
        max_position_embeddings=128,
        num_attention_heads=5,
        num_hidden_layers=2,
        num_key_value_heads=5,
        rms_norm_eps=1e-5,
        rope_scaling={
            "type": "longrope",
            "long_factor": [1.0, 1.2, 1.5, 2.0],
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "original_max_position_embeddings": 64,
        },
        vocab_size=0,
        scale_emb=12.0,
        dim_model_base=32,
        scale_depth=1.4,
        rope_theta=10000.0,
    )
    return around(MiniCPMModel(config), lambda self, inputs_embeds: self.model(inputs_embeds, True)[0]), {
        "inputs_embeds": floats(2, 11, 40)
    }


@case("voxcpm")
def voxcpm_codec() -> Case:
    from voxcpm.modules.audiovae.audio_vae import AudioVAE, AudioVAEConfig

    vae = AudioVAE(
        AudioVAEConfig(
            encoder_dim=8, encoder_rates=[2, 4], latent_dim=8, decoder_dim=32, decoder_rates=[4, 2], depthwise=True
        )
    )
    return around(vae, lambda self, audio: self.model.decode(self.model.encode(audio, 16000))), {
        "audio": floats(2, 1, 160)
    }


constructor("fid_block", "pytorch-fid", "pytorch_fid.inception:FIDInceptionE_1", x=(2, 24, 12, 16))(24)


@case("alibi-detect")
def alibi_encoder() -> Case:
    from alibi_detect.cd.pytorch import UAE, HiddenOutput

    body = nn.Sequential(nn.Conv2d(3, 8, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return UAE(encoder_net=HiddenOutput(body, layer=-1)), {"x": torch.rand(2, 3, 32, 40)}


@case("alibi-detect")
def alibi_kernel() -> Case:
    from alibi_detect.utils.pytorch.kernels import DeepKernel, GaussianRBF

    rbf = {"sigma": torch.tensor([1.5]), "trainable": True}
    kernel = DeepKernel(nn.Linear(9, 5), GaussianRBF(**rbf), GaussianRBF(**rbf), eps=0.1)
    return kernel, {"x": floats(7, 9), "y": floats(11, 9)}


@case("simpletransformers")
def simple_labels() -> Case:
    from simpletransformers.custom_models.models import BertForMultiLabelSequenceClassification
    from transformers import BertConfig

    config = BertConfig(
        vocab_size=60,
        hidden_size=40,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=64,
        max_position_embeddings=48,
        num_labels=4,
    )
    model = BertForMultiLabelSequenceClassification(config)
    return around(model, lambda self, input_ids, attention_mask: self.model(input_ids, attention_mask)[0]), {
        "input_ids": ids(60, 2, 11),
        "attention_mask": torch.tensor([[1] * 11, [1] * 7 + [0] * 4]),
    }


@case("s3prl")
def s3prl_mockingjay() -> Case:
    from s3prl.upstream.mockingjay.model import TransformerConfig, TransformerModel

    config = TransformerConfig(
        {
            "hidden_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "hidden_act": "gelu",
            "intermediate_size": 64,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "share_layer": False,
            "pre_layer_norm": False,
        }
    )
    model = TransformerModel(config, 24)
    return around(
        model,
        lambda self, spec, positions, mask: self.model(spec, positions, mask, output_all_encoded_layers=False),
    ), {
        "spec": floats(2, 13, 24),
        "positions": floats(2, 13, 40),
        "mask": torch.tensor([[1.0] * 13, [1.0] * 8 + [0.0] * 5]),
    }


@case("moshi")
def moshi_mimi_encoder() -> Case:
    from moshi.modules.seanet import SEANetEncoder

    return SEANetEncoder(
        dimension=24, n_filters=8, n_residual_layers=1, ratios=[4, 2], causal=True, pad_mode="constant"
    ), {"x": floats(2, 1, 160)}


@case("moshi")
def moshi_transformer() -> Case:
    from moshi.modules.transformer import ProjectedTransformer

    return ProjectedTransformer(
        24,
        (24, 16),
        d_model=40,
        num_heads=5,
        num_layers=2,
        dim_feedforward=64,
        causal=True,
        context=8,
        positional_embedding="rope",
        layer_scale=0.3,
        conv_layout=True,
    ), {"x": floats(2, 24, 21)}


@case("pocket-tts")
def pocket_transformer() -> Case:
    from pocket_tts.modules.transformer import StreamingTransformer

    model = StreamingTransformer(40, 5, 2, layer_scale=0.3, dim_feedforward=64, context=8)
    return around(model, lambda self, x: self.model(x, None)), {"x": floats(2, 21, 40)}


def _multimolecule(name: str, **more: object) -> Case:
    import multimolecule.models

    config = getattr(multimolecule.models, f"{name}Config")(
        vocab_size=26,
        hidden_size=40,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=64,
        max_position_embeddings=64,
        **more,
    )
    model = getattr(multimolecule.models, f"{name}Model")(config, add_pooling_layer=False)
    return around(
        model, lambda self, input_ids, attention_mask: self.model(input_ids, attention_mask).last_hidden_state
    ), {
        "input_ids": torch.randint(6, 26, (2, 11)),
        "attention_mask": torch.tensor([[1] * 11, [1] * 7 + [0] * 4]),
    }


@case("multimolecule")
def multimolecule_rnafm() -> Case:
    return _multimolecule("RnaFm")


@case("multimolecule")
def multimolecule_rinalmo() -> Case:
    return _multimolecule("RiNALMo")


def _labml(layer: nn.Module) -> Case:
    forward = around(layer, lambda self, query, mask: self.model(query=query, key=query, value=query, mask=mask))
    return forward, {"query": floats(11, 2, 40), "mask": torch.ones(11, 11, 1).tril()}


@case("labml-nn")
def labml_alibi() -> Case:
    from labml_nn.transformers.alibi import AlibiMultiHeadAttention

    return _labml(AlibiMultiHeadAttention(8, 40))


@case("super-image")
def superimage_msrn() -> Case:
    from super_image import MsrnConfig, MsrnModel

    return MsrnModel(MsrnConfig(scale=2, n_blocks=2, n_feats=16)), {"x": torch.rand(1, 3, 20, 24)}


@case("super-image")
def superimage_pan() -> Case:
    from super_image import PanConfig, PanModel

    return PanModel(PanConfig(scale=2, nf=16, unf=8, nb=2)), {"x": torch.rand(2, 3, 20, 24)}


@case("fastervit")
def fastervit_block() -> Case:
    from fastervit.models.faster_vit import FasterViTLayer

    return FasterViTLayer(
        dim=40, depth=2, input_resolution=14, num_heads=5, window_size=7, ct_size=2, downsample=False, only_local=False
    ), {"x": floats(2, 40, 14, 14)}


@case("mambapy")
def mambapy_mamba() -> Case:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=24, n_layers=2, d_state=8)), {"x": floats(2, 13, 24)}


@case("torchmultimodal-nightly")
def multimodal_coca() -> Case:
    from torchmultimodal.models.coca.multimodal_decoder import CoCaMultimodalDecoder

    return CoCaMultimodalDecoder(11, 40, 2, 5, 64, output_dim=24, visual_embedding_dim=32), {
        "texts": floats(2, 11, 40),
        "images": floats(2, 9, 32),
    }


@case("torchmultimodal-nightly")
def multimodal_albef() -> Case:
    from torchmultimodal.models.albef.multimodal_encoder import ALBEFMultimodalEncoder

    return ALBEFMultimodalEncoder(hidden_size=40, num_hidden_layers=2, num_attention_heads=5, intermediate_size=64), {
        "hidden_states": floats(2, 11, 40),
        "attention_mask": torch.cat([torch.zeros(2, 1, 1, 8), torch.full((2, 1, 1, 3), -1e4)], -1),
        "encoder_hidden_states": floats(2, 9, 40),
    }


constructor(
    "aurora_perceiver",
    "microsoft-aurora",
    "aurora.model.perceiver:PerceiverResampler",
    latents=(2, 5, 40),
    x=(2, 13, 24),
)(40, 24, depth=2, head_dim=8, num_heads=5)


@case("microsoft-aurora")
def aurora_swin() -> Case:
    from aurora.model.swin3d import Basic3DEncoderLayer

    layer = Basic3DEncoderLayer(40, 2, 5, (2, 3, 3), 24)
    return around(
        layer,
        lambda self, x, c: self.model(x.flatten(1, 3), c, tuple(x.shape[1:4]))[0],
    ), {"x": floats(2, 4, 6, 12, 40), "c": floats(2, 24)}


@case("tirex-ts")
def tirex_block() -> Case:
    from tirex.models.slstm.block import sLSTMBlock
    from tirex.models.slstm.cell import sLSTMBlockConfig

    return sLSTMBlock(sLSTMBlockConfig(embedding_dim=40, num_heads=5), "torch"), {"x": floats(2, 11, 40)}


@case("toto-ts")
def toto_backbone() -> Case:
    from toto.model.transformer import Transformer

    model = Transformer(
        num_layers=2,
        embed_dim=40,
        num_heads=5,
        mlp_hidden_dim=64,
        dropout=0.1,
        spacewise_every_n_layers=2,
        spacewise_first=True,
        use_memory_efficient_attention=False,
    )
    return around(
        model,
        lambda self, inputs: self.model(inputs, torch.zeros_like(inputs[..., 0])),
    ), {"inputs": floats(2, 3, 12, 40)}


@case("rectools")
def rectools_layers() -> Case:
    from rectools.models.nn.transformers.net_blocks import PreLNTransformerLayers

    layers = PreLNTransformerLayers(2, 40, 5, 0.1)
    return around(
        layers,
        lambda self, seqs, padding: self.model(seqs, (~padding).to(seqs.dtype)[..., None], None, padding),
    ), {"seqs": floats(2, 11, 40), "padding": torch.tensor([[False] * 11, [True] * 4 + [False] * 7])}


@case("deeptab")
def deeptab_saint() -> Case:
    from deeptab.architectures.saint import SAINT
    from deeptab.configs import SAINTConfig

    return _deeptab(SAINT, SAINTConfig(d_model=40, n_heads=5, n_layers=2))


@case("deeptab")
def deeptab_mambular() -> Case:
    from deeptab.architectures.mambular import Mambular
    from deeptab.configs import MambularConfig

    return _deeptab(Mambular, MambularConfig(d_model=24, n_layers=2))


def _deeptab(made: type[nn.Module], config: object) -> Case:
    numbers = {f"n{n}": {"preprocessing": "standard", "dimension": 1, "categories": None} for n in range(3)}
    categories = {f"c{n}": {"preprocessing": "int", "dimension": 1, "categories": 7} for n in range(2)}
    model = made((numbers, categories, {}), num_classes=2, config=config)

    def forward(self: nn.Module, numbers: Tensor, categories: Tensor) -> Tensor:
        return self.model(  # type: ignore[no-any-return,operator]
            [numbers[:, n : n + 1] for n in range(3)], [categories[:, n : n + 1] for n in range(2)], []
        )

    return around(model, forward), {"numbers": floats(20, 3), "categories": torch.randint(0, 7, (20, 2))}


constructor(
    "torchtuples_mixed",
    "torchtuples",
    "torchtuples.practical:MixedInputMLP",
    input_numeric=(20, 9),
    input_categoric=lambda: torch.randint(0, 5, (20, 2)),
)(9, [5, 5], [3, 3], [24, 24], 4)


@case("pycox")
def pycox_time() -> Case:
    from pycox.models.cox_time import MLPVanillaCoxTime

    return MLPVanillaCoxTime(9, [24, 24]), {"input": floats(20, 9), "time": torch.rand(20, 1)}


@case("tabdpt")
def tabdpt_layer() -> Case:
    from tabdpt.model import TransformerEncoderLayer

    layer = TransformerEncoderLayer(40, 5, 64, 16, 64, 8)
    return around(layer, lambda self, x, y: self.model(x, y, y.shape[0])), {
        "x": floats(13, 2, 40),
        "y": floats(7, 2, 8),
    }


constructor(
    "panns_tagging",
    "panns-inference",
    "panns_inference.models:ConvBlock",
    input=(2, 1, 64, 32),
)(1, 16)


constructor(
    "piano_frames",
    "piano-transcription-inference",
    "piano_transcription_inference.models:AcousticModelCRnn8Dropout",
    input=(2, 1, 40, 229),
)(24, 1792, 0.1)


constructor("denoiser_demucs", "denoiser", "denoiser.demucs:Demucs", mix=(2, 1, 800))(
    hidden=8, depth=2, resample=2, normalize=True
)


constructor("doclayout_block", "doclayout-yolo", "doclayout_yolo.nn.modules:G2L_CRM", x=(2, 16, 12, 20))(
    16, 24, 2, True, True, [1, 2, 3]
)


@case("doclayout-yolo")
def doclayout_attention() -> Case:
    from doclayout_yolo.nn.modules import C2fAttn

    return C2fAttn(16, 24, 1, ec=12, nh=2, gc=32), {"x": floats(2, 16, 12, 20), "guide": floats(2, 7, 32)}


@case("bpnet-lite")
def bpnet_profiles() -> Case:
    from bpnetlite.bpnet import BPNet

    return BPNet(16, 3, n_outputs=2, n_control_tracks=0, trimming=20, verbose=False), {"X": torch.rand(2, 4, 120)}


@case("esm")
def esm3_stack() -> Case:
    from esm.layers.transformer_stack import TransformerStack

    stack = TransformerStack(40, 5, None, 2, n_layers_geom=0)
    return around(stack, lambda self, x, sequence_id: self.model(x, sequence_id)[0]), {
        "x": floats(2, 11, 40),
        "sequence_id": torch.tensor([[True] * 11, [True] * 7 + [False] * 4]),
    }


@case("romatch")
def romatch_block() -> Case:
    from romatch.models.transformer import Block

    return Block(40, 5, init_values=0.3), {"x": floats(2, 11, 40)}


@case("audio-diffusion-pytorch")
def audiodiffusion_unet() -> Case:
    from audio_diffusion_pytorch import UNetV0

    net = UNetV0(
        dim=1,
        in_channels=2,
        channels=[8, 16],
        factors=[1, 2],
        items=[1, 1],
        attentions=[0, 1],
        attention_heads=5,
        attention_features=8,
        use_time_conditioning=True,
    )
    return net, {"x": floats(2, 2, 64), "time": torch.rand(2)}
