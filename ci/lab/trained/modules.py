"""Trained modules, as their packages wrote them: prices, series, pitch, DNA, voice, antibodies."""

import csv
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ci.lab.trained.case import Arrays, Case, Run, case

#: antibodies of antiberty's page, trastuzumab's and adalimumab's: heavy and light
ANTIBODIES = (
    "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAYMELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS",
    "DVVMTQTPFSLPVSLGDQASISCRSSQSLVHSNGNTYLHWYLQKPGQSPKLLIYKVSNRFSGVPDRFSGSGSGTDFTLKISRVEAEDLGVYFCSQSTHVPYTFGGGTKLEIK",
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
)
#: every fourth residue is asked for
_STEP = 4


def bare(name: str, folder: Path) -> None:
    """A package without what its ``__init__`` imports, which the model does not need."""
    spec = importlib.util.spec_from_file_location(name, folder / name / "__init__.py")
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)


class Heads(nn.Module):
    """AntiBERTy without its loss, the number 0 where there are no labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        output = self.model(input_ids, attention_mask)
        return {name: output[name] for name in ("prediction_logits", "species_logits", "chain_logits")}


@case("antiberty==0.1.3", "every fourth residue of 6 antibodies, masked, and which chain each is")
def antiberty(folder: Path) -> Case:
    bare("antiberty", folder)
    from antiberty.model.AntiBERTy import AntiBERTy

    inside = folder / "antiberty" / "trained_models"
    ids = {word: number for number, word in enumerate((inside / "vocab.txt").read_text().split())}
    AntiBERTy.all_tied_weights_keys = {}  # transformers 5 asks for it where nobody calls post_init
    model = AntiBERTy.from_pretrained(inside / "AntiBERTy_md_smooth")
    rows = [np.array([ids["[CLS]"], *(ids[residue] for residue in each), ids["[SEP]"]]) for each in ANTIBODIES]

    def ask(run: Run) -> NDArray[Any]:
        found = []
        for row in rows:
            places = np.arange(1, len(row) - 1, _STEP)
            asked = np.tile(row, (len(places), 1))
            asked[np.arange(len(places)), places] = ids["[MASK]"]
            output = run({"input_ids": asked, "attention_mask": np.ones_like(asked)})
            found += [*output["prediction_logits"][np.arange(len(places)), places].argmax(-1)]
            found += [output["chain_logits"][0].argmax()]
        return np.array(found)

    truth = [answer for number, row in enumerate(rows) for answer in (*row[1:-1:_STEP], number % 2)]
    example = {"input_ids": torch.from_numpy(np.stack([rows[3], rows[5]])[:, :17])}
    example["attention_mask"] = torch.ones_like(example["input_ids"])
    return Case(module=Heads(model), ask=ask, example=example, truth=np.array(truth))


@case("chat-spx==0.2.0", "the date and the price of 32,556 days, 11 digits each")
def chat_spx(_: Path) -> Case:
    from chat_spx.core import digits_to_fixed, load_model_checkpoint

    model, _ = load_model_checkpoint("cpu")
    days = range(model.num_dates)
    rows = np.array([[kind, day] for kind in (0, 1) for day in days], np.int64)

    # the largest ids of each column, which bound the bundle's
    example = np.array([[0, 5], [1, 7], [2, model.num_dates - 1]])

    def ask(run: Run) -> NDArray[Any]:
        logits = [run({"x": part})["output"] for part in np.array_split(rows, len(rows) // 2048)]
        return np.array([digits_to_fixed(row) for row in np.concatenate(logits).argmax(-1)])

    return Case(module=model, ask=ask, example={"x": torch.from_numpy(example)})


class Forecaster(nn.Module):
    """fracast's encoder and head as its `_predict_rows` calls them."""

    def __init__(self, core: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.core, self.head = core, head

    def forward(self, values: Tensor, valid: Tensor) -> Tensor:
        hidden = self.core(values, valid, valid.float())
        quantiles: Tensor = self.head.forward_horizon(
            hidden, last_obs=values[:, 0, -1:], ctx=values[:, 0], ctx_mask=valid[:, 0]
        )
        return quantiles


@case("fracast==0.1.0", "the next 48 values of 24 seasonal series, within 10% of their range")
def fracast(_: Path) -> Case:
    from fracast.inference import FracastModel

    model = FracastModel.from_pretrained(weights="fp32")
    generator = np.random.default_rng(0)
    steps = np.arange(model.context_length + model.horizon)
    series = np.stack([
        np.sin(2 * np.pi * steps / period) + slope * steps / len(steps) + noise * generator.standard_normal(len(steps))
        for period in (7, 12, 24, 48, 96, 168)
        for slope, noise in ((0, 0.05), (1, 0.05), (0, 0.2), (-1, 0.2))
    ])  # fmt: skip
    known = series[:, : model.context_length]
    low, span = known.min(1, keepdims=True), np.ptp(known, axis=1, keepdims=True)
    scaled = (series - low) / span
    values = scaled[:, None, : model.context_length].astype(np.float32)
    call = {"values": values, "valid": np.ones_like(values, bool)}
    return Case(
        module=Forecaster(model.core, model.head),
        ask=lambda run: run(call)["output"][:, :, model.quantiles.index(0.5)].ravel(),
        example={name: torch.from_numpy(value[:2]) for name, value in call.items()},
        truth=scaled[:, model.context_length :].ravel(),
        tolerance=0.1,
    )


@case("torchfcpe==0.0.4", "the note of every 10 ms of 37 sung tones")
def torchfcpe(_: Path) -> Case:
    # of torchaudio it uses resampling alone, which 16 kHz do not need; PyPI's needs CUDA
    sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    sys.modules["torchaudio.transforms"] = types.ModuleType("torchaudio.transforms")
    sys.modules["torchaudio.transforms"].Resample = nn.Identity
    from torchfcpe.models_infer import spawn_bundled_infer_model

    whole = spawn_bundled_infer_model("cpu")
    rate, notes = 16000, np.arange(45, 82)
    with torch.no_grad():
        mels = [whole.wav2mel(torch.from_numpy(sung(note, rate))[None, :, None], rate) for note in notes]

    def ask(run: Run) -> NDArray[Any]:
        latents = torch.from_numpy(np.concatenate([run({"x": mel.numpy()})["output"] for mel in mels]))
        pitch = whole.model.cent_to_f0(whole.model.latent2cents_local_decoder(latents, threshold=0.006)).numpy()
        return (69 + 12 * np.log2(pitch.clip(1) / 440)).round().ravel()

    return Case(
        module=whole.model,
        ask=ask,
        example={"x": mels[0][:, :40].repeat(2, 1, 1)},
        truth=np.repeat(notes, mels[0].shape[1]),
    )


def sung(note: int, rate: int) -> NDArray[np.float32]:
    """Half a second of a vowel: harmonics with an open vowel's formants, and a little breath."""
    pitch, times = 440 * 2 ** ((note - 69) / 12), np.arange(rate // 2) / rate
    tones = np.arange(1, int(rate / 2 / pitch)) * pitch
    loud = sum(np.exp(-(((tones - formant) / 200) ** 2)) for formant in (800, 1200, 2500)) + 50 / tones
    voice = np.sin(2 * np.pi * tones[:, None] * times).T @ loud
    breath = np.random.default_rng(note).standard_normal(len(times))
    return (0.5 * voice / np.abs(voice).max() + 0.003 * breath).astype(np.float32)


@case("criscross==0.1.8", "which of two places Cas9 cuts rather: all pairs of 40, the sample's 5 and each shifted")
def criscross(folder: Path) -> Case:
    bare("criscross", folder)
    from criscross.encoding import encode_seq
    from criscross.weights import load_default

    model, _ = load_default()
    with (folder / "criscross" / "data" / "sample_input.csv").open() as file:
        rows = [row for row in csv.DictReader(file) for _ in range(8)]
    places = [np.roll(encode_seq(row["off_target_512nt"]).numpy(), number % 8) for number, row in enumerate(rows)]
    call = {
        "x": np.stack([encode_seq(row["Guide_sequence"]).numpy() for row in rows]),
        "off_target_x": np.stack(places),
        "strand": np.array([int(row["strand_id"]) for row in rows]),
    }

    def ask(run: Run) -> NDArray[Any]:
        scores = next(iter(run(call).values()))[:, 0]
        one, other = np.triu_indices(len(scores), 1)
        return scores[one] > scores[other]

    example = {name: torch.from_numpy(value[:2]) for name, value in call.items()}
    return Case(module=model, ask=ask, example=example)


class Step(nn.Module):
    """akiki's network with names for what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio: Tensor, state: Tensor) -> dict[str, Tensor]:
        probability, following = self.model(audio, state)
        return {"probability": probability, "following": following}


@case("akiki==0.0.6", "whether each of 343 steps of 16 ms is a voice: vowels, noise, silence and a tone")
def akiki(folder: Path) -> Case:
    from akiki._torch import AkikiModel

    models, rate = folder / "akiki" / "models", 16000
    model = AkikiModel(128)
    model.load_state_dict(torch.load(models / "akiki-vad.pt", weights_only=True)["state_dict"])
    vowels = [sung(note, rate) for note in (45, 48, 50, 52, 55, 57)]
    noise = 0.1 * np.random.default_rng(0).standard_normal(rate).astype(np.float32)
    tone = 0.3 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate).astype(np.float32)
    audio = np.concatenate([np.zeros(rate // 2 + 320, np.float32), *vowels[:3], noise, *vowels[3:], tone])

    def ask(run: Run) -> NDArray[Any]:
        state, found = np.zeros((1, 1, 128), np.float32), []
        for start in range(0, len(audio) - 576 + 1, 256):
            output = run({"audio": audio[None, start : start + 576], "state": state})
            state = output["following"]
            found.append(output["probability"][0] > 0.5)
        return np.array(found)

    session = onnxruntime.InferenceSession(models / "akiki-vad.onnx", providers=["CPUExecutionProvider"])

    def own(call: Arrays) -> Arrays:
        probability, following = session.run(
            ["probability", "h_out"], {"audio_with_context": call["audio"], "h": call["state"]}
        )
        return {"probability": probability.ravel(), "following": following}

    example = {"audio": torch.from_numpy(audio[None, -576:]), "state": torch.zeros(1, 1, 128)}
    # one step has one size, which the GRU over it needs
    options = {"axes": {"audio": ["batch_size", 576], "state": [1, "batch_size", 128]}}
    return Case(module=Step(model), ask=ask, example=example, options=options, others={"akiki-vad.onnx": own})
