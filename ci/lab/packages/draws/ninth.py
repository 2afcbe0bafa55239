"""The ninth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the former: of the packages that import with this version of PyTorch, those with the most downloads that had
not been tried here, then kind by kind; one to three modules of each, as its users deploy them. Only calls of the
modules in PyTorch came before. ninth.txt has their versions.
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats, ids

constructor(
    "modelscope_nafnet",
    "modelscope",
    "modelscope.models.cv.image_denoise.nafnet.NAFNet_arch:NAFNet",
    inp=(2, 3, 20, 24),
)(width=8, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])


@case("modelscope")
def modelscope_frcrn() -> Case:
    from modelscope.models.audio.ans.frcrn import FRCRN

    model = FRCRN(
        complex=True,
        model_complexity=8,
        model_depth=14,
        log_amp=False,
        padding_mode="zeros",
        win_len=640,
        win_inc=320,
        fft_len=640,
    )
    return around(model, lambda self, inputs: self.model(inputs)), {"inputs": floats(2, 6400)}


@case("cuequivariance-torch")
def cuequivariance_product() -> Case:
    import cuequivariance
    import cuequivariance_torch

    irreps = cuequivariance.Irreps("O3", "8x0e + 4x1o")
    return cuequivariance_torch.FullyConnectedTensorProduct(
        irreps, cuequivariance.Irreps("O3", "0e + 1o"), irreps, layout=cuequivariance.mul_ir, method="naive"
    ), {"x1": floats(7, 20), "x2": floats(7, 4)}


@case("cuequivariance-torch")
def cuequivariance_harmonics() -> Case:
    import cuequivariance_torch

    return cuequivariance_torch.SphericalHarmonics([0, 1, 2], method="naive"), {"vectors": floats(7, 3)}


@case("snorkel")
def snorkel_tasks() -> Case:
    from snorkel.classification import MultitaskClassifier, Operation, Task

    trunk, modules = nn.Linear(9, 24), nn.ModuleDict
    tasks = [
        Task(
            name,
            modules({"trunk": trunk, f"{name}_head": nn.Linear(24, size)}),
            [Operation("trunk", [("_input_", "features")]), Operation(f"{name}_head", ["trunk"])],
        )
        for name, size in (("topic", 4), ("spam", 2))
    ]
    model = MultitaskClassifier(tasks, device=-1, dataparallel=False)

    def forward(self: nn.Module, features: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model({"features": features}, ["topic", "spam"])  # type: ignore[operator]
        return outputs["topic_head"], outputs["spam_head"]

    return around(model, forward), {"features": floats(5, 9)}


@case("cornac")
def cornac_sasrec() -> Case:
    from cornac.models.sasrec.sasrec import SASRecModel

    model = SASRecModel(50, embedding_dim=40, maxlen=20, n_layers=2, n_heads=5, pad_idx=50)
    return around(
        model,
        lambda self, hist_iids, out_iids: self.model(None, hist_iids, out_iids),
    ), {"hist_iids": ids(50, 2, 11), "out_iids": ids(50, 7)}


@case("cornac")
def cornac_neumf() -> Case:
    from cornac.models.ncf.backend_pt import NeuMF

    return NeuMF(30, 50), {"users": ids(30, 7), "items": ids(50, 7)}


@case("cornac")
def cornac_vae() -> Case:
    from cornac.models.vaecf.vaecf import VAE

    model = VAE(8, [50, 24], "tanh", "mult")
    return around(model, lambda self, x: self.model.decode(self.model.encode(x)[0])), {"x": torch.rand(5, 50)}


@case("model2vec")
def model2vec_classifier() -> Case:
    from model2vec.train import StaticModelForClassification
    from model2vec.train.dataset import TokenBatch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1} | {f"w{n}": n for n in range(2, 60)}, unk_token="[UNK]"))
    model = StaticModelForClassification(vectors=floats(60, 32), tokenizer=words, out_dim=4, hidden_dim=24)

    def forward(self: nn.Module, ids: Tensor) -> Tensor:
        lengths = torch.full_like(ids[:, 0], ids.shape[1])
        return self.model(TokenBatch.from_lengths(ids.flatten(), lengths))  # type: ignore[no-any-return,operator]

    return around(model, forward), {"ids": ids(60, 5, 11)}


@case("skrl")
def skrl_policy() -> Case:
    from gymnasium.spaces import Box
    from skrl.models.torch import GaussianMixin, Model

    class Policy(GaussianMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, observation_space=Box(-1, 1, (9,)), action_space=Box(-1, 1, (3,)), device="cpu")
            GaussianMixin.__init__(self)
            self.net = nn.Sequential(nn.Linear(9, 24), nn.ELU(), nn.Linear(24, 3))
            self.log_std = nn.Parameter(torch.zeros(3))

        def compute(self, inputs: dict[str, Tensor], role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    return around(Policy(), lambda self, observations: self.model.compute({"observations": observations})[0]), {
        "observations": floats(5, 9)
    }


@case("unimol-tools")
def unimol_encoder() -> Case:
    from unimol_tools.models.transformers import TransformerEncoderWithPair

    model = TransformerEncoderWithPair(
        encoder_layers=2, embed_dim=40, ffn_embed_dim=64, attention_heads=5, max_seq_len=48
    )
    return around(
        model,
        lambda self, emb, pairs, padding_mask: self.model(
            emb, attn_mask=pairs.flatten(0, 1), padding_mask=padding_mask
        )[0],
    ), {
        "emb": floats(2, 11, 40),
        "pairs": floats(2, 5, 11, 11),
        "padding_mask": torch.tensor([[False] * 11, [False] * 7 + [True] * 4]),
    }


def _merlion(name: str, **more: object) -> Case:
    from importlib import import_module

    package = import_module(f"merlion.models.forecast.{name.lower()}")
    config = getattr(package, f"{name}Config")(
        n_past=16,
        max_forecast_steps=8,
        encoder_input_size=5,
        decoder_input_size=5,
        start_token_len=4,
        model_dim=40,
        n_heads=5,
        fcn_dim=64,
        num_encoder_layers=2,
        num_decoder_layers=1,
        **more,
    )
    config.dim = config.c_out = 5
    return getattr(package, f"{name}Model")(config), {
        "past": floats(2, 16, 5),
        "past_timestamp": floats(2, 16, 4),
        "future_timestamp": floats(2, 8, 4),
    }


@case("salesforce-merlion")
def merlion_autoformer() -> Case:
    return _merlion("Autoformer", moving_avg=5)


@case("salesforce-merlion")
def merlion_transformer() -> Case:
    return _merlion("Transformer")


@case("tortoise-tts")
def tortoise_vocoder() -> Case:
    from tortoise.models.vocoder import UnivNetGenerator

    return UnivNetGenerator(
        noise_dim=8,
        channel_size=8,
        dilations=[1, 3],
        strides=[4, 4],
        kpnet_conv_size=3,
        hop_length=16,
        n_mel_channels=12,
    ), {"c": floats(2, 12, 13), "z": floats(2, 8, 13)}


@case("tortoise-tts")
def tortoise_diffusion() -> Case:
    from tortoise.models.diffusion_decoder import DiffusionTts

    model = DiffusionTts(
        model_channels=64,
        num_layers=2,
        in_channels=12,
        in_latent_channels=24,
        in_tokens=50,
        out_channels=24,
        num_heads=4,
    )
    return around(
        model,
        lambda self, x, timesteps, aligned: self.model(x, timesteps, precomputed_aligned_embeddings=aligned),
    ), {"x": floats(2, 12, 21), "timesteps": torch.tensor([3.0, 7.0]), "aligned": floats(2, 64, 21)}


@case("stable-audio-tools")
def stableaudio_dit() -> Case:
    from stable_audio_tools.models.dit import DiffusionTransformer

    model = DiffusionTransformer(
        io_channels=8, embed_dim=64, cond_token_dim=24, global_cond_dim=32, depth=2, num_heads=2
    )
    return around(
        model,
        lambda self, x, t, text, seconds: self.model(x, t, cross_attn_cond=text, global_embed=seconds),
    ), {"x": floats(2, 8, 21), "t": torch.rand(2), "text": floats(2, 7, 24), "seconds": floats(2, 32)}


constructor(
    "stableaudio_encoder",
    "stable-audio-tools",
    "stable_audio_tools.models.autoencoders:OobleckEncoder",
    x=(2, 2, 160),
)(channels=8, latent_dim=8, c_mults=[1, 2], strides=[2, 4], use_snake=True)
constructor(
    "stableaudio_decoder",
    "stable-audio-tools",
    "stable_audio_tools.models.autoencoders:OobleckDecoder",
    x=(2, 8, 21),
)(channels=8, latent_dim=8, c_mults=[1, 2], strides=[2, 4], use_snake=True)
constructor(
    "generative_unet",
    "monai-generative",
    "generative.networks.nets:DiffusionModelUNet",
    x=(2, 2, 16, 24),
    timesteps=lambda: torch.tensor([3, 7]),
    context=(2, 5, 24),
)(
    2,
    2,
    2,
    num_res_blocks=1,
    num_channels=(16, 32),
    attention_levels=(False, True),
    norm_num_groups=8,
    num_head_channels=8,
    with_conditioning=True,
    cross_attention_dim=24,
)


@case("monai-generative")
def generative_vae() -> Case:
    from generative.networks.nets import AutoencoderKL

    model = AutoencoderKL(3, num_res_blocks=1, num_channels=(16, 32), attention_levels=(False, True), norm_num_groups=8)
    return around(model, lambda self, x: self.model.reconstruct(x)), {"x": floats(1, 1, 8, 12, 16)}


constructor(
    "generative_tokens",
    "monai-generative",
    "generative.networks.nets:DecoderOnlyTransformer",
    x=lambda: ids(60, 2, 11),
)(60, 48, 40, 2, 5)


@case("spikingjelly")
def spikingjelly_network() -> Case:
    from spikingjelly.activation_based import functional, layer, neuron

    net = nn.Sequential(layer.Conv2d(2, 8, 3, padding=1), layer.BatchNorm2d(8), neuron.LIFNode(), layer.MaxPool2d(2))
    functional.set_step_mode(net, "m")

    def forward(self: nn.Module, frames: Tensor) -> Tensor:
        functional.reset_net(self.model)
        return self.model(frames).mean(0)  # type: ignore[no-any-return,operator]

    return around(net, forward), {"frames": torch.rand(4, 2, 2, 12, 16)}


@case("normflows")
def normflows_density() -> Case:
    import normflows

    flows = [
        flow
        for _ in range(2)
        for flow in (
            normflows.flows.AffineCouplingBlock(normflows.nets.MLP([2, 24, 24, 4], init_zeros=True)),
            normflows.flows.Permute(4, mode="swap"),
        )
    ]
    model = normflows.NormalizingFlow(normflows.distributions.DiagGaussian(4), flows)
    return around(model, lambda self, x: self.model.log_prob(x)), {"x": floats(7, 4)}


@case("deep-phonemizer")
def phonemizer_forward() -> Case:
    from dp.model.model import ForwardTransformer

    model = ForwardTransformer(30, 40, d_model=40, d_fft=64, layers=2, heads=5)
    return around(model, lambda self, text: self.model({"text": text})), {"text": ids(30, 2, 11)}


@case("rtdl")
def rtdl_transformer() -> Case:
    import rtdl

    return rtdl.FTTransformer.make_default(
        n_num_features=5, cat_cardinalities=[4, 3], n_blocks=2, last_layer_query_idx=[-1], d_out=2
    ), {"x_num": floats(7, 5), "x_cat": torch.randint(0, 3, (7, 2))}


@case("rtdl")
def rtdl_resnet() -> Case:
    import rtdl

    return rtdl.ResNet.make_baseline(
        d_in=9, n_blocks=2, d_main=24, d_hidden=32, dropout_first=0.2, dropout_second=0.1, d_out=3
    ), {"x": floats(7, 9)}


constructor("torchfm_afm", "torchfm", "torchfm.model.afm:AttentionalFactorizationMachineModel", x=lambda: ids(7, 5, 3))(
    [7, 9, 11], 8, 8, (0.1, 0.1)
)
constructor(
    "torchfm_xdeepfm", "torchfm", "torchfm.model.xdfm:ExtremeDeepFactorizationMachineModel", x=lambda: ids(7, 5, 3)
)([7, 9, 11], 8, (24, 24), 0.1, (16, 16))
constructor("s5_block", "s5-pytorch", "s5:S5Block", x=(2, 13, 24))(24, 16, False)


@case("rl-games")
def rlgames_network() -> Case:
    from rl_games.algos_torch.network_builder import A2CBuilder

    builder = A2CBuilder()
    builder.load(
        {
            "separate": False,
            "space": {
                "continuous": {
                    "mu_activation": "None",
                    "sigma_activation": "None",
                    "mu_init": {"name": "default"},
                    "sigma_init": {"name": "const_initializer", "val": 0},
                    "fixed_sigma": True,
                }
            },
            "mlp": {"units": [24, 16], "activation": "elu", "initializer": {"name": "default"}},
        }
    )
    net = builder.build("net", actions_num=3, input_shape=(9,), num_seqs=1, value_size=1)
    return around(net, lambda self, obs: self.model({"obs": obs})[0]), {"obs": floats(5, 9)}


@case("anemoi-models")
def anemoi_mlp() -> Case:
    from anemoi.models.layers.mlp import MLP
    from anemoi.models.layers.utils import load_layer_kernels

    return MLP(9, 24, 16, layer_kernels=load_layer_kernels({}), n_extra_layers=1), {"x": floats(7, 9)}


@case("whisperspeech")
def whisperspeech_decoder() -> Case:
    from whisperspeech.modules import BaseDecoder

    model = BaseDecoder(depth=2, n_head=5, width=40, length=48, rope=True)

    def forward(self: nn.Module, x: Tensor, xenc: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        return self.model(x, positions, xenc, torch.arange(xenc.shape[1]))  # type: ignore[no-any-return,operator]

    return around(model, forward), {"x": floats(2, 11, 40), "xenc": floats(2, 9, 40)}


@case("audioldm")
def audioldm_unet() -> Case:
    from audioldm.latent_diffusion.openaimodel import UNetModel

    return UNetModel(
        image_size=16,
        in_channels=4,
        model_channels=32,
        out_channels=4,
        num_res_blocks=1,
        attention_resolutions=[2],
        channel_mult=(1, 2),
        num_head_channels=16,
        use_spatial_transformer=True,
        extra_film_condition_dim=24,
        extra_film_use_concat=True,
    ), {"x": floats(2, 4, 16, 8), "timesteps": torch.tensor([3, 7]), "y": floats(2, 24)}


@case("audioldm")
def audioldm_vocoder() -> Case:
    from audioldm.hifigan.models import Generator

    return Generator(
        SimpleNamespace(
            resblock="1",
            num_mels=12,
            upsample_rates=[4, 2],
            upsample_kernel_sizes=[8, 4],
            upsample_initial_channel=32,
            resblock_kernel_sizes=[3, 5],
            resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]],
        )
    ), {"x": floats(2, 12, 13)}


@case("colpali-engine")
def colpali_text() -> Case:
    from colpali_engine.models import ColQwen2
    from transformers import Qwen2VLConfig

    config = Qwen2VLConfig(
        text_config={
            "vocab_size": 60,
            "hidden_size": 40,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
        },
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 40, "num_heads": 2},
        image_token_id=58,
        video_token_id=59,
        vision_start_token_id=57,
    )
    return around(
        ColQwen2(config),
        lambda self, input_ids, attention_mask: self.model(input_ids=input_ids, attention_mask=attention_mask),
    ), {"input_ids": ids(50, 2, 11), "attention_mask": torch.tensor([[1] * 11, [1] * 7 + [0] * 4])}


@case("clearvoice")
def clearvoice_mossformer() -> Case:
    from clearvoice.models.mossformer2_se.mossformer2_se_wrapper import TestNet

    return TestNet(n_layers=1), {"input": floats(1, 40, 180)}


@case("clearvoice")
def clearvoice_frcrn() -> Case:
    from clearvoice.models.frcrn_se.unet import UNet

    return UNet(1, complex=True, model_complexity=8, model_depth=14, padding_mode="zeros"), {
        "inputs": floats(2, 1, 321, 20, 2)
    }


@case("diffsynth")
def diffsynth_wan() -> Case:
    from diffsynth.models.wan_video_dit import DiTBlock, precompute_freqs_cis

    def forward(self: nn.Module, x: Tensor, context: Tensor, t_mod: Tensor) -> Tensor:
        freqs = precompute_freqs_cis(12)[: x.shape[1], None]
        return self.model(x, context, t_mod, freqs)  # type: ignore[no-any-return,operator]

    return around(DiTBlock(False, 48, 4, 64), forward), {
        "x": floats(2, 13, 48),
        "context": floats(2, 7, 48),
        "t_mod": floats(2, 6, 48),
    }


@case("diffsynth")
def diffsynth_joint() -> Case:
    from diffsynth.models.qwen_image_dit import QwenImageTransformerBlock

    return QwenImageTransformerBlock(40, 5, 8), {
        "image": floats(2, 13, 40),
        "text": floats(2, 7, 40),
        "temb": floats(2, 40),
    }


@case("peptdeep")
def peptdeep_retention() -> Case:
    from peptdeep.model.rt import Model_RT_LSTM_CNN

    return Model_RT_LSTM_CNN(), {"aa_indices": torch.randint(1, 27, (5, 13)), "mod_x": torch.rand(5, 13, 109)}


@case("peptdeep")
def peptdeep_spectrum() -> Case:
    from peptdeep.model.ms2 import ModelMS2Bert

    return ModelMS2Bert(["b_z1", "b_z2", "y_z1", "y_z2"], hidden=64, nlayers=2), {
        "aa_indices": torch.randint(1, 27, (5, 13)),
        "mod_x": torch.rand(5, 13, 109),
        "charges": torch.rand(5, 1),
        "NCEs": torch.rand(5, 1),
        "instrument_indices": torch.randint(0, 3, (5,)),
    }


constructor("cebra_offset", "cebra", "cebra.models.model:Offset10Model", inp=(5, 9, 10))(9, 24, 3)


@case("cebra")
def cebra_receptive() -> Case:
    import cebra.models

    return cebra.models.init("offset36-model-more-dropout", 9, 24, 3), {"inp": floats(5, 9, 36)}


constructor("robomimic_gpt", "robomimic", "robomimic.models.transformers:GPT_Backbone", inputs=(2, 10, 40))(
    embed_dim=40, context_length=10, num_layers=2, num_heads=5
)


@case("robomimic")
def robomimic_visual() -> Case:
    from robomimic.models.base_nets import ResNet18Conv, SpatialSoftmax

    return nn.Sequential(ResNet18Conv(input_coord_conv=True), SpatialSoftmax((512, 2, 3), num_kp=8)), {
        "input": torch.rand(2, 3, 64, 96)
    }


constructor("gliclass_scorer", "gliclass", "gliclass.scorers:MLPScorer", text_rep=(2, 40), label_rep=(2, 7, 40))(
    40, mlp_hidden_size=24
)


@case("supar")
def supar_encoder() -> Case:
    from supar.modules.transformer import RelativePositionTransformerEncoder

    return RelativePositionTransformerEncoder(2, n_heads=5, n_model=40, n_inner=64), {
        "x": floats(2, 11, 40),
        "mask": torch.tensor([[True] * 11, [True] * 7 + [False] * 4]),
    }


@case("supar")
def supar_parser() -> Case:
    from supar.modules import MLP, Biaffine

    class Arcs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.deps, self.attend = MLP(40, 24), MLP(40, 24), Biaffine(24, bias_x=True, bias_y=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(self.deps(x), self.heads(x))  # type: ignore[no-any-return]

    return Arcs(), {"x": floats(2, 11, 40)}


@case("segment-anything-hq")
def samhq_decoder() -> Case:
    from segment_anything_hq.modeling.mask_decoder_hq import MaskDecoderHQ
    from segment_anything_hq.modeling.transformer import TwoWayTransformer

    decoder = MaskDecoderHQ(transformer_dim=40, transformer=TwoWayTransformer(2, 40, 5, 64), vit_dim=32)

    def forward(
        self: nn.Module, embedding: Tensor, positions: Tensor, points: Tensor, dense: Tensor, middle: Tensor
    ) -> tuple[Tensor, ...]:
        return self.model(  # type: ignore[no-any-return,operator]
            embedding, positions, points, dense, False, False, [middle]
        )

    return around(decoder, forward), {
        "embedding": floats(1, 40, 8, 8),
        "positions": floats(1, 40, 8, 8),
        "points": floats(2, 3, 40),
        "dense": floats(2, 40, 8, 8),
        "middle": floats(1, 8, 8, 32),
    }


@case("segment-anything-hq")
def samhq_encoder() -> Case:
    from segment_anything_hq.modeling import ImageEncoderViT

    model = ImageEncoderViT(
        img_size=64,
        patch_size=8,
        embed_dim=40,
        depth=2,
        num_heads=5,
        out_chans=24,
        use_rel_pos=True,
        window_size=5,
        global_attn_indexes=(1,),
    )
    return model, {"x": torch.rand(2, 3, 64, 64)}


@case("pix2tex")
def pix2tex_encoder() -> Case:
    from pix2tex.models.vit import ViTransformerWrapper
    from x_transformers import Encoder

    return ViTransformerWrapper(
        max_width=64, max_height=48, patch_size=8, attn_layers=Encoder(dim=40, depth=2, heads=5, attn_dim_head=8)
    ), {"img": torch.rand(2, 1, 32, 48)}


@case("matcha-tts")
def matcha_encoder() -> Case:
    from matcha.models.components.text_encoder import TextEncoder

    encoder = SimpleNamespace(
        n_feats=12,
        n_channels=40,
        filter_channels=64,
        n_heads=2,
        n_layers=2,
        kernel_size=3,
        p_dropout=0.1,
        prenet=True,
    )
    duration = SimpleNamespace(filter_channels_dp=32, kernel_size=3, p_dropout=0.1)
    return TextEncoder("RoPE Encoder", encoder, duration, 60), {
        "x": ids(60, 2, 11),
        "x_lengths": torch.tensor([11, 7]),
    }


@case("matcha-tts")
def matcha_decoder() -> Case:
    from matcha.models.components.decoder import Decoder

    return Decoder(
        24, 12, channels=(32, 32), attention_head_dim=16, num_heads=2, num_mid_blocks=1, act_fn="snakebeta"
    ), {
        "x": floats(2, 12, 20),
        "mask": torch.ones(2, 1, 20),
        "mu": floats(2, 12, 20),
        "t": torch.rand(2),
    }


constructor("ludwig_transformer", "ludwig", "ludwig.modules.attention_modules:TransformerStack", inputs=(2, 11, 40))(
    input_size=40, max_sequence_length=11, hidden_size=40, num_heads=5, output_size=40, num_layers=2
)
constructor("ludwig_mixer", "ludwig", "ludwig.modules.mlp_mixer_modules:MLPMixer", inputs=(2, 3, 32, 48))(
    32, 48, 3, patch_size=8, embed_size=24, token_size=32, channel_dim=32, num_layers=2
)


constructor("seisbench_phasenet", "seisbench", "seisbench.models:PhaseNet", x=(2, 3, 3001))()
constructor("seisbench_transformer", "seisbench", "seisbench.models:EQTransformer", x=(2, 3, 1024))(in_samples=1024)
