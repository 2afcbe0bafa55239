"""The fifth draw: modules of packages that are in none of the lists, written down before any was converted.

Chosen as the third and the fourth: for each kind, of the packages that import with this version of PyTorch, the most
downloaded that had not been tried here, one or two modules of each (three of fastai's, one for each of its kinds of
data). fifth.txt has their versions.
"""

import os
from typing import Any

import torch
from torch import nn

from ci.lab.packages.modules import Case, case, constructor, floats


@case("keras")
def keras_encoder() -> Case:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(60, 40)(ids)
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(5, 8)(x, x))
    return keras.Model(ids, keras.layers.Dense(7)(x)), {"inputs": torch.randint(0, 60, (2, 11))}


@case("keras")
def keras_mobilenet() -> Case:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    model = keras.applications.MobileNetV3Small(input_shape=(64, 96, 3), weights=None, classes=7)
    return model, {"inputs": 255 * torch.rand(2, 64, 96, 3)}


constructor(
    "fastai_tabular",
    "fastai",
    "fastai.tabular.model:TabularModel",
    x_cat=lambda: torch.randint(0, 9, (5, 2)),
    x_cont=(5, 3),
)([(9, 4), (12, 5)], 3, 2, [24, 16])


@case("fastai")
def fastai_unet() -> Case:
    from fastai.vision.models.unet import DynamicUnet
    from fastai.vision.models.xresnet import xresnet18

    body = nn.Sequential(*list(xresnet18().children())[:-4])
    return DynamicUnet(body, 3, (64, 96), self_attention=True), {"x": floats(2, 3, 64, 96)}


@case("fastai")
def fastai_text() -> Case:
    from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_clas_config
    from fastai.text.models.core import get_text_classifier

    config = {**awd_lstm_clas_config, "emb_sz": 24, "n_hid": 32, "n_layers": 2}

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = get_text_classifier(AWD_LSTM, 60, 3, config=config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids)[0]

    return Classifier(), {"ids": torch.randint(2, 60, (2, 19))}


@case("pytorch-metric-learning")
def metric_arcface() -> Case:
    from pytorch_metric_learning.losses import ArcFaceLoss

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = ArcFaceLoss(7, 24)

        def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
            return self.loss.get_logits(embeddings)

    return Logits(), {"embeddings": floats(5, 24)}


constructor(
    "metric_ntxent",
    "pytorch-metric-learning",
    "pytorch_metric_learning.losses:NTXentLoss",
    embeddings=(8, 24),
    labels=lambda: torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]),
)()


@case("botorch")
def botorch_posterior() -> Case:
    from botorch.models import SingleTaskGP

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            at = torch.rand(12, 3, dtype=torch.float64)
            self.model = SingleTaskGP(at, at.sin().sum(-1, keepdim=True)).float().eval()

        def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            posterior = self.model.posterior(points)
            return posterior.mean, posterior.variance

    return Mean(), {"points": torch.rand(6, 3)}


constructor(
    "fidelity_inception",
    "torch-fidelity",
    "torch_fidelity.feature_extractor_inceptionv3:InceptionE_1",
    x=(2, 24, 9, 11),
)(24)


constructor("pyiqa_musiq", "pyiqa", "pyiqa.archs.musiq_arch:MUSIQ", x=lambda: torch.rand(2, 3, 64, 96))(
    hidden_size=48, mlp_dim=96, num_layers=2, pretrained=False, longer_side_lengths=[64, 96]
)


constructor("pyiqa_topiq", "pyiqa", "pyiqa.archs.topiq_arch:CFANet", x=lambda: torch.rand(2, 3, 64, 96))(
    semantic_model_name="resnet18", backbone_pretrain=False, pretrained=False, use_ref=False, inter_dim=40, num_heads=5
)


constructor(
    "controlnet_hed",
    "controlnet-aux",
    "controlnet_aux.hed:ControlNetHED_Apache2",
    x=lambda: 255 * torch.rand(2, 3, 48, 64),
)()


constructor(
    "controlnet_lineart", "controlnet-aux", "controlnet_aux.lineart:Generator", x=lambda: torch.rand(2, 3, 48, 64)
)(3, 1, 2)


constructor(
    "s3tokenizer_encoder",
    "s3tokenizer",
    "s3tokenizer.model_v2:AudioEncoderV2",
    x=(2, 40, 61),
    x_len=lambda: torch.tensor([61, 48]),
)(40, 64, 1, 2, 2, False)


@case("sb3-contrib")
def contrib_quantiles() -> Case:
    from gymnasium.spaces import Box, Discrete
    from sb3_contrib.qrdqn.policies import QuantileNetwork
    from stable_baselines3.common.torch_layers import FlattenExtractor

    observations = Box(-1, 1, (9,))
    network = QuantileNetwork(
        observations, Discrete(4), FlattenExtractor(observations), 9, n_quantiles=11, net_arch=[24]
    )
    return network, {"obs": floats(5, 9)}


constructor("torchcrepe_tiny", "torchcrepe", "torchcrepe.model:Crepe", x=(3, 1024))("tiny")


constructor("yolov5_transformer", "yolov5", "yolov5.models.common:C3TR", x=(2, 24, 8, 10))(24, 32, 1)


@case("yolov5")
def yolov5_nano() -> Case:
    from pathlib import Path

    import yolov5
    from yolov5.models.yolo import DetectionModel

    file = Path(yolov5.__file__).parent / "models/hub/yolov5n.yaml"
    if not file.exists():
        file = next(Path(yolov5.__file__).parent.rglob("yolov5n.yaml"))
    return DetectionModel(str(file), nc=5), {"x": torch.rand(2, 3, 64, 96)}


@case("torchlibrosa")
def librosa_logmel() -> Case:
    from torchlibrosa import LogmelFilterBank, Spectrogram

    layers = nn.Sequential(Spectrogram(256, 100), LogmelFilterBank(16000, 256, 40, top_db=None))
    return layers, {"input": floats(2, 1600)}


constructor("librosa_stft", "torchlibrosa", "torchlibrosa:STFT", input=(2, 1600))(256, 64)


constructor("loralib_merged", "loralib", "loralib:MergedLinear", x=(2, 11, 40))(
    40, 120, r=4, enable_lora=[True, False, True]
)


constructor("loralib_embedding", "loralib", "loralib:Embedding", x=lambda: torch.randint(0, 60, (2, 11)))(60, 40, r=4)


constructor(
    "resemblyzer_encoder", "resemblyzer", "resemblyzer.voice_encoder:VoiceEncoder", mels=lambda: torch.rand(2, 61, 40)
)("cpu", verbose=False)


constructor("face_landmarks", "face-alignment", "face_alignment.models:FAN", x=lambda: torch.rand(2, 3, 64, 64))(1)


constructor(
    "face_detector",
    "face-alignment",
    "face_alignment.detection.sfd.net_s3fd:s3fd",
    x=lambda: 255 * torch.rand(2, 3, 64, 96),
)()


constructor("wavelets_dwt", "pytorch-wavelets", "pytorch_wavelets:DWTForward", x=(2, 3, 48, 64))(2, "db2", "symmetric")


constructor("wavelets_dtcwt", "pytorch-wavelets", "pytorch_wavelets:DTCWTForward", x=(2, 3, 48, 64))(J=2)


@case("rsl-rl-lib")
def rsl_policy() -> Case:
    from rsl_rl.modules import MLP, EmpiricalNormalization

    return nn.Sequential(EmpiricalNormalization(9), MLP(9, (3, 2), [24, -1])), {"input": floats(5, 9)}


constructor(
    "groundingdino_fusion",
    "groundingdino-py",
    "groundingdino.models.GroundingDINO.fuse_modules:BiAttentionBlock",
    v=(2, 30, 40),
    l=(2, 11, 24),
    attention_mask_l=lambda: torch.tensor([[False] * 11, [False] * 8 + [True] * 3]),
)(40, 24, 40, 5)


@case("groundingdino-py")
def groundingdino_deformable() -> Case:
    from groundingdino.models.GroundingDINO.ms_deform_attn import MultiScaleDeformableAttention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = MultiScaleDeformableAttention(40, 5, 2, 4, batch_first=True)

        def forward(self, query: torch.Tensor, value: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
            shapes, starts = torch.tensor([[6, 7], [3, 4]]), torch.tensor([0, 42])
            return self.layer(
                query, value=value, reference_points=points, spatial_shapes=shapes, level_start_index=starts
            )

    return Attention(), {"query": floats(2, 11, 40), "value": floats(2, 54, 40), "points": torch.rand(2, 11, 2, 2)}


constructor("torchsr_ninasr", "torchsr", "torchsr.models:ninasr_b0", x=lambda: torch.rand(2, 3, 24, 32))(2)


constructor("torchsr_edsr", "torchsr", "torchsr.models:edsr_baseline", x=lambda: torch.rand(2, 3, 24, 32))(2)


constructor("entmax_bisect", "entmax", "entmax:EntmaxBisect", X=(2, 11, 24))(1.3)


constructor("entmax_15", "entmax", "entmax:Entmax15", X=(2, 11, 24))()


constructor(
    "f5_dit",
    "f5-tts",
    "f5_tts.model.backbones.dit:DiT",
    x=(2, 31, 20),
    cond=(2, 31, 20),
    text=lambda: torch.randint(0, 40, (2, 13)),
    time=lambda: torch.rand(2),
)(dim=64, depth=2, heads=8, dim_head=8, mel_dim=20, text_num_embeds=40, text_dim=24, conv_layers=1)


constructor(
    "chatterbox_perceiver", "chatterbox-tts", "chatterbox.models.t3.modules.perceiver:Perceiver", h=(2, 13, 40)
)(8, 40, 40, 5)


constructor(
    "chatterbox_conformer",
    "chatterbox-tts",
    "chatterbox.models.s3gen.transformer.upsample_encoder:UpsampleConformerEncoder",
    xs=(2, 19, 512),
    xs_lens=lambda: torch.tensor([19, 12]),
)(512, 512, 8, 64, 1)


constructor(
    "opacus_attention",
    "opacus",
    "opacus.layers:DPMultiheadAttention",
    query=(2, 11, 40),
    key=(2, 13, 40),
    value=(2, 13, 40),
)(40, 5, batch_first=True)


constructor("opacus_lstm", "opacus", "opacus.layers:DPLSTM", input=(2, 11, 24))(24, 32, batch_first=True)


@case("pytorch-pretrained-bert")
def pretrained_bert() -> Case:
    from pytorch_pretrained_bert import BertConfig, BertModel

    config = BertConfig(60, 40, 2, 5, 64)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(config)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids, attention_mask=attention_mask, output_all_encoded_layers=False)[0]

    mask = torch.tensor([[1] * 11, [1] * 8 + [0] * 3])
    return Encoder(), {"input_ids": torch.randint(0, 60, (2, 11)), "attention_mask": mask}


@case("mace-torch")
def mace_product() -> Case:
    from e3nn.o3 import Irreps
    from mace.modules import EquivariantProductBasisBlock

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = EquivariantProductBasisBlock(
                Irreps("8x0e + 8x1o"), Irreps("8x0e"), 2, use_sc=False, num_elements=3
            )

        def forward(self, nodes: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
            return self.block(nodes, None, elements)

    return Block(), {"nodes": floats(9, 8, 4), "elements": torch.eye(3)[torch.randint(0, 3, (9,))]}


@case("mace-torch")
def mace_radial() -> Case:
    from mace.modules import RadialEmbeddingBlock

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = RadialEmbeddingBlock(5.0, 8, 6)

        def forward(self, lengths: torch.Tensor) -> Any:
            embedded = self.block(lengths, None, None, None)
            return embedded[0] if isinstance(embedded, tuple) else embedded

    return Block(), {"lengths": 4 * torch.rand(30, 1) + 0.5}


constructor("pytorchcv_shuffle", "pytorchcv", "pytorchcv.model_provider:get_model", x=(2, 3, 224, 224))(
    "shufflenetv2_wd2"
)


constructor("pytorchcv_bisenet", "pytorchcv", "pytorchcv.model_provider:get_model", x=(2, 3, 128, 128))(
    "bisenet_resnet18_celebamaskhq", pretrained_backbone=False, in_size=(128, 128)
)


@case("torch-dct")
def dct_image() -> Case:
    import torch_dct

    class Transform(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            spectrum = torch_dct.dct_2d(x, norm="ortho")
            return spectrum, torch_dct.idct_2d(spectrum * (spectrum.abs() > 0.5), norm="ortho")

    return Transform(), {"x": floats(2, 16, 24)}


@case("torch-rechub")
def rechub_interest() -> Case:
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.ranking import DIN

    features = [SparseFeature("user", 30, embed_dim=8)]
    history = [SequenceFeature("history", 50, embed_dim=8, pooling="concat", shared_with="item")]
    target = [SparseFeature("item", 50, embed_dim=8)]

    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = DIN(features, history, target, {"dims": [24, 16]}, {"dims": [16, 8]})

        def forward(self, user: torch.Tensor, item: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
            return self.model({"user": user, "item": item, "history": history})

    drawn = {"user": torch.randint(0, 30, (5,)), "item": torch.randint(0, 50, (5,))}
    return Clicks(), {**drawn, "history": torch.randint(0, 50, (5, 7))}


constructor(
    "rechub_hstu", "torch-rechub", "torch_rechub.models.generative:HSTUModel", x=lambda: torch.randint(0, 60, (2, 13))
)(60, 40, 5, 2, 8, 8, 64, use_time_embedding=False)


@case("zuko")
def zuko_splines() -> Case:
    from zuko.flows import NSF

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = NSF(3, 5, transforms=2, hidden_features=[24])

        def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            return self.flow(context).log_prob(x)

    return Density(), {"x": floats(6, 3), "context": floats(6, 5)}


constructor("torchcfm_unet", "torchcfm", "torchcfm.models.unet:UNetModel", t=lambda: torch.rand(2), x=(2, 1, 16, 24))(
    (1, 16, 24), 32, 1, channel_mult=(1, 2), attention_resolutions="8", num_heads=4
)
