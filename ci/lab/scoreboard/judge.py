"""Judges the files of an exporter against the original library: ``EXPORTER CHECKPOINT DIRECTORY TASK``, prints JSON.

Plain ONNX Runtime on the CPU. Inputs are fed by their names, and the reference gets the same ones: inputs that the file
lacks are not passed to the library. Of an exporter it reads only which file is the encoder, the prefill and the decode
step, and names with another meaning there.
"""

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ci.lab.scoreboard import points as at
from ci.lab.scoreboard.graph import File, OutsideError, RunError, UnknownError
from ci.lab.scoreboard.points import Point
from ci.lab.scoreboard.samples import Arrays, Size, longest, mask, modality, native_pixels, positions, sample

#: of the largest value of an output: what may differ; and in units of the float32 error of PyTorch
TOLERANCE, NOISE = 1e-4, 8.0
#: below this the float32 error of PyTorch is that of four inputs: one alone says little where a model enlarges rounding
BORDER, OTHERS = 1e-3, (2, 3, 4)


#: parts that all messages of ONNX Runtime have
_NOISE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |Non-zero status code returned while |/onnxruntime_src/\S+ ")


class Model(Protocol):
    """The original library: outputs in float64 and in float32."""

    model: Any
    also: Sequence["Model"]

    def __call__(self, arrays: Arrays, calls: list[int], *, cached: bool = False) -> tuple[Arrays, Arrays]: ...


@dataclass
class Finding:
    """Results of all points of a file."""

    right: int = 0
    outside: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    wrong: list[tuple[str, float, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    worst: float = 0.0

    def verdict(self) -> dict[str, Any]:
        """right, sizes (right at the sizes that it declares), wrong, fails or unjudged, with the first point."""
        counts = {"right": self.right, "outside": self.outside, "skipped": self.skipped, "worst": self.worst}
        if self.wrong:
            point, off, said = self.wrong[0]
            return {"verdict": "wrong", "point": point, "off": off, "said": said, "wrong": len(self.wrong), **counts}
        if self.failed:
            point, said = self.failed[0]
            return {"verdict": "fails", "point": point, "said": said, "failed": len(self.failed), **counts}
        if not self.right:
            return {"verdict": "unjudged", "said": (self.skipped or self.outside or [""])[0], **counts}
        return {"verdict": "sizes" if self.outside else "right", **counts}


class Judge:
    """The files of an exporter against a model; ``stages``: encoder, first (of a prompt) and step (with a cache)."""

    def __init__(
        self, stages: dict[str, File], model: Model, kind: str, states: Mapping[str, int] | None = None
    ) -> None:
        self._stages, self._model, self._kind = stages, model, kind
        self._takes = {name for file in stages.values() for name in file.inputs}
        ends = (states or {}).items()
        self._states = {name: np.array(x) for name in self._takes for end, x in ends if name.endswith(end)}
        self.finding = Finding()

    def points(self) -> list[Point]:
        """The points for the kind of the model."""
        model = self._model.model
        if self._kind in ("rows", "decoder", "seq2seq"):
            what = modality(model)
            if self._kind == "seq2seq" and what != "text":
                return at.captions(Size(1, pixels=native_pixels(model.config)), self._longest(model))
            if what == "image":
                return at.images(native_pixels(model.config))
            if what == "sound":
                return at.sounds()
            if what == "series":
                return [Point(Size(batch)) for batch in (1, 3)]
            make: Callable[[int], list[Point]] = getattr(at, self._kind)
            return make(self._longest(model))
        raise ValueError(self._kind)

    def _longest(self, model: Any) -> int:
        """Maximum length of the model; some position tables begin at an offset."""
        most = longest(model.config)
        for length in range(most, most - 5, -1):
            with contextlib.suppress(Exception):
                decoded = 2 if modality(model) == "text" else length
                self._expected(Point(Size(1, length), (length,), decoded if self._kind == "seq2seq" else 0))
                return length
        return 23

    def run(self) -> Finding:
        """Judge every point."""
        what = modality(self._model.model)
        for point in self.points():
            name = point.described(what)
            if point.size.rows and not any("attention_mask" in taken for taken in self._takes):
                self.finding.outside.append(f"{name}: the file takes no mask")
                continue
            try:
                arrays, expected = self._expected(point)
            except Exception as err:  # noqa: BLE001 (the library refuses the input)
                self.finding.skipped.append(f"{name}: the library: {_sentence(err)}")
                continue
            self._judge(point, name, arrays, expected)
        return self.finding

    def _expected(self, point: Point, seed: int = 1) -> tuple[Arrays, list[tuple[Arrays, Arrays]]]:
        """Inputs that ``seed`` draws, and the library's outputs (float64, float32) for the inputs of the file.

        A decoder without an input for positions may count them from the first column, as ``forward`` does, or from
        the first real token, as ``generate`` does: both are right. So are padded rows that are each as the library
        gives them alone: its recurrences go on over padding on the left. So are steps as the library takes them with
        its cache: they may differ from the same tokens in one call.
        """
        library = self._model.model
        arrays = sample(library, point.size, seed)
        if "input_ids" in arrays:
            # of one type: an input of some files, though no tokenizer of such a model gives it
            arrays.setdefault("token_type_ids", np.zeros_like(arrays["input_ids"]))
        if self._kind == "seq2seq":
            rng, config = np.random.default_rng(2), library.config.get_text_config(decoder=True)
            arrays["decoder_input_ids"] = rng.integers(5, config.vocab_size, (point.size.batch, point.decoder))
        if self._kind == "decoder":
            arrays["position_ids"] = positions(mask(point.size))
        same = {"encoder_attention_mask": "attention_mask"} if self._kind == "seq2seq" else {}
        taken = {same.get(name, name) for name in self._takes}
        ways = [taken]
        if self._kind == "decoder" and point.size.rows and "position_ids" not in taken:
            ways.append({*taken, "position_ids"})
        passed = [{name: x for name, x in arrays.items() if name in way} for way in ways]
        models = [self._model, *self._model.also]
        expected = [model(arguments, list(point.calls)) for model in models for arguments in passed]
        if self._kind == "decoder" and point.size.rows:
            expected += [self._alone(model, passed[0], mask(point.size) == 1) for model in models]
        if self._kind == "decoder" and len(point.calls) > 1:
            with contextlib.suppress(Exception):
                expected += [model(x, list(point.calls), cached=True) for model in models for x in passed]
        return arrays, expected

    @staticmethod
    def _alone(model: Model, arguments: Arrays, real: np.ndarray) -> tuple[Arrays, Arrays]:
        """The library's logits (float64, float32) of each row without its padding, at the row's place."""
        placed: tuple[Arrays, Arrays] = {}, {}
        for row, columns in enumerate(real):
            cut = {name: x[row : row + 1, columns] for name, x in arguments.items()}
            for outputs, alone in zip(placed, model(cut, [int(columns.sum())]), strict=True):
                size = alone["logits"].shape[-1]
                outputs.setdefault("logits", np.zeros((*real.shape, size)))[row, columns] = alone["logits"][0]
        return placed

    def _judge(self, point: Point, name: str, arrays: Arrays, expected: list[tuple[Arrays, Arrays]]) -> None:
        """Run the file at a point, in its calls, and compare every call."""
        finding, done = self.finding, list[tuple[slice, Arrays]]()
        main = self._main(expected[0][0])
        if main not in (outputs := self._stages["first"].outputs):
            heads = ", ".join(output for output in outputs if not output.startswith("cache."))
            finding.skipped.append(f"{name}: no output {main}, but {heads}")
            return
        try:
            start = 0
            for end, got in self._calls(point, arrays):
                done.append((slice(start, end) if self._kind != "rows" else slice(None), got))
                start = end
        except OutsideError as err:
            finding.outside.append(f"{name}: {err}")
            return
        except UnknownError as err:
            finding.skipped.append(f"{name}: {err}")
            return
        except RunError as err:
            finding.failed.append((f"{name}, step {len(done)}" if done else name, _sentence(err)))
            return
        # right where it agrees with one way to call the library in all calls
        try:
            differences = [self._first_off(point, done, *outputs) for outputs in expected]
        except UnknownError as err:
            finding.skipped.append(f"{name}: {err}")
            return
        if None in differences:
            finding.right += 1
            return
        index, off, said = next(difference for difference in differences if difference is not None)
        finding.wrong.append((f"{name}, step {index}" if index else name, off, said))

    def _rounding(self, point: Point, output: str) -> float:
        """The largest float32 error of PyTorch, of the output's scale, in other inputs of the point."""
        errors = []
        for seed in OTHERS:
            want, single = (outputs[output].astype(np.float64) for outputs in self._expected(point, seed)[1][0])
            errors.append(float(np.nanmax(np.abs(want - single)) / np.nanmax(np.abs(want))))
        return max(errors)

    def _first_off(
        self, point: Point, done: list[tuple[slice, Arrays]], want: Arrays, single: Arrays
    ) -> tuple[int, float, str] | None:
        """The first call with a difference beyond the tolerance."""
        for index, (cut, got) in enumerate(done):
            if off := self._off(point, got, want, single, cut):
                return index, *off
        return None

    def _main(self, want: Arrays) -> str:
        """The output without which a file does not do the task."""
        return next(iter(want)) if self._kind == "rows" else "logits"

    def _calls(self, point: Point, arrays: Arrays) -> Any:
        """The end of every call and the file's outputs at the tokens since the call before."""
        first, step = self._stages["first"], self._stages["step"]
        if self._kind == "rows":
            # features of an image, then a mask for every prompt
            features = self._stages["encoder"](arrays) if "encoder" in self._stages else {}
            yield 0, first({**arrays, **features})
            return
        state, encoded = dict(self._states), Arrays()
        if self._kind == "seq2seq" and "encoder" in self._stages:
            outputs = self._stages["encoder"](arrays)
            encoded = {f"encoder_outputs.{name}": x for name, x in outputs.items() if not name.startswith("cache.")}
            # of some exporters it has another name
            encoded["encoder_hidden_states"] = outputs.get("last_hidden_state", next(iter(outputs.values())))
            if "attention_mask" in arrays:
                encoded["encoder_attention_mask"] = arrays["attention_mask"]
            state = {key: x for key, x in outputs.items() if key.startswith("cache.")}
        tokens = "decoder_input_ids" if self._kind == "seq2seq" else "input_ids"
        start = 0
        for end in point.calls:
            file = step if start else first
            begin = start if file.caches else 0
            fed = {**arrays, **encoded, tokens: arrays[tokens][:, begin:end]}
            if self._kind == "seq2seq":
                fed["decoder_attention_mask"] = np.ones((point.size.batch, end), np.int64)
                fed["position_ids"] = np.broadcast_to(np.arange(begin, end), (point.size.batch, end - begin))
            else:
                fed["attention_mask"] = arrays["attention_mask"][:, :end]
                fed["position_ids"] = arrays["position_ids"][:, begin:end]
            fed["cache_position"] = np.arange(begin, end)
            outputs = file({**fed, **state})
            state |= {key: x for key, x in outputs.items() if key.startswith("cache.")}
            yield end, {name: x[:, start - begin :] if name == "logits" else x for name, x in outputs.items()}
            start = end

    def _off(self, point: Point, got: Arrays, want: Arrays, single: Arrays, cut: slice) -> tuple[float, str] | None:
        """By how much of the scale real tokens differ, and where; nothing where all outputs are within tolerance."""
        named = [name for name in want if name in got and (self._kind == "rows" or name == "logits")]
        for name in named:
            library, float32 = (x[name][:, cut] if self._kind != "rows" else x[name] for x in (want, single))
            if got[name].shape != library.shape:
                return 1.0, f"{name} has the shape {list(got[name].shape)} instead of {list(library.shape)}"
            real = self._real(point, name, library, cut)
            file, library, float32 = (np.asarray(x, np.float64)[real] for x in (got[name], library, float32))
            library = np.where(np.isnan(library), float32, library)
            if np.isnan(library).any():
                raise UnknownError(f"the library: {name} is not a number")
            same = file == library
            scale = float(np.abs(library[np.isfinite(library)]).max(initial=1e-30))
            noise = float(np.abs(np.where(library == float32, 0.0, library - float32)).max(initial=0.0))
            apart = float(np.abs(np.where(same, 0.0, file - library)).max(initial=0.0))
            if not apart <= max(TOLERANCE * scale, NOISE * noise):
                if apart < BORDER * scale and apart <= NOISE * scale * self._rounding(point, name):
                    continue  # further outputs and calls may still be wrong
                return apart / scale, f"{name} is off by {apart / scale:.1e} of its scale (PyTorch {noise / scale:.0e})"
            self.finding.worst = max(self.finding.worst, float(f"{apart / scale:.1e}"))
        return None

    def _real(self, point: Point, name: str, library: np.ndarray, cut: slice) -> Any:
        """Index of the compared values: real tokens, or texts that are read at a real token."""
        if self._kind == "seq2seq" or not point.size.rows:
            return np.s_[:]
        real = mask(point.size)
        if name == "logits_per_image":  # [images, texts]
            return np.s_[:, real[:, 0] == 1]
        if self._kind == "decoder":
            return real[:, cut] == 1
        if library.ndim > 1 and library.shape[1] == real.shape[1]:
            return real == 1
        if name == "last_hidden_state" and library.shape[1] == 3 * real.shape[1]:  # of a trajectory's steps
            return np.repeat(real == 1, 3, axis=1)
        return real[:, 0] == 1


def _sentence(err: Exception) -> str:
    name = "" if isinstance(err, RunError) else f"{type(err).__name__}: "
    return _NOISE.sub("", f"{name}{' '.join(str(err).split())}")[:300]


def kind(task: str) -> str:
    """rows (one call), decoder or seq2seq."""
    if task in ("text2text-generation", "image-to-text", "speech-to-text"):
        return "seq2seq"
    return "decoder" if task == "text-generation" else "rows"


def main(exporter: str, checkpoint: str, directory: str, task: str) -> None:
    from ci.lab.scoreboard.reference import Reference

    module = importlib.import_module(f"ci.lab.scoreboard.exporters.{exporter}")
    paths: dict[str, Path] = module.stages(Path(directory))
    files: dict[str, File] = {}
    for stage, path in paths.items():
        renames = module.RENAMES if "encoder" in paths and stage != "encoder" else {}
        with contextlib.suppress(StopIteration):
            files[stage] = next(file for file in files.values() if file.path == path)
            continue
        try:
            files[stage] = File(path, renames)
        except Exception as err:  # noqa: BLE001 (what ONNX Runtime does not load)
            print(json.dumps({"verdict": "fails", "point": f"loading {path.name}", "said": _sentence(err)}))
            return
    reference = Reference.of(checkpoint)
    states = module.states(reference.model.config) if hasattr(module, "states") else None
    print(json.dumps(Judge(files, reference, kind(task), states).run().verdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
