"""posexport compare: tasks that need positions, a directory that is a run's own, tables that agree."""

import base64
import csv
import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from posexport.cli import group
from posexport.errors import PosexportError
from posexport.study.compare import tasks
from posexport.study.compare.accuracy import one
from posexport.study.compare.comparison import compare
from posexport.study.compare.page import against_latency, against_length, page
from posexport.study.compare.records import (
    LIMIT,
    Cost,
    Document,
    Result,
    Setup,
    TableRow,
    TaskInfo,
    measured,
    noise,
    to_csv,
    to_text,
)
from posexport.study.compare.train import make, own_parameters, train
from posexport.study.compare.workers import each, opened
from tests.tolerances import agree

TINY = Setup(
    steps=3,
    hidden=16,
    layers=1,
    heads=2,
    feedforward=24,
    length=24,
    rows=6,
    asked_rows=30,
    timed_rows=3,
    timed_runs=2,
)
NAMES = ["rope", "relative-key", "axial"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the processes that train: several threads of one small model wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Document, list[tuple[int, int, str]]]:
    """A finished comparison of nope, rope, relative-key and an encoding for images: not to be changed."""
    target = tmp_path_factory.mktemp("compare") / "deep" / "out"
    moves: list[tuple[int, int, str]] = []
    document = compare(target, NAMES, TINY, progress=lambda *move: moves.append(move))
    return target, document, moves


# the tasks


@pytest.mark.parametrize("length", [16, 17, 64, 256])
def test_answers_are_those_of_reading_the_row(length: int) -> None:
    tokens, answers = tasks.draw(np.random.default_rng(3), 7, length)
    letters = range(tasks.FIRST_LETTER, tasks.FIRST_PAIR)
    for row, (copy, order, marker) in zip(tokens.tolist(), answers.transpose(1, 0, 2).tolist(), strict=True):
        assert row[0] == tasks.START
        assert tasks.PADDING not in row
        stands = row.index(tasks.MARKER)
        for i, token in enumerate(row):
            assert copy[i] == (row[i - 2] - tasks.FIRST_LETTER if i > 1 and row[i - 2] in letters else -1)
            if token >= tasks.FIRST_PAIR:
                pair = (token - tasks.FIRST_PAIR) // 2
                partner = ({2 * pair, 2 * pair + 1} - {token - tasks.FIRST_PAIR}).pop() + tasks.FIRST_PAIR
                assert order[i] == (i < row.index(partner))
            else:
                assert order[i] == -1
            places = [(-16, -9), (-8, -1), (1, 8), (9, 16)]
            want = [n for n, (low, high) in enumerate(places) if low <= i - stands <= high]
            step = (abs(i - stands) - 1) % 8 + 1
            fours = [stands - step - 8, stands - step, stands + step, stands + step + 8]
            asked = want and fours[0] > 0 and fours[3] < length
            assert marker[i] == (want[0] if asked else -1)


def test_rows_differ_in_their_order_alone() -> None:
    tokens, answers = tasks.draw(np.random.default_rng(4), 50, 64)
    assert (np.sort(tokens, axis=1) == np.sort(tokens[0])).all()
    assert len(np.unique(tokens, axis=0)) == 50
    assert ((answers != tasks.NOT_ASKED).sum((1, 2)) > 200).all()


@pytest.mark.parametrize("length", [64, 256])
def test_no_answer_is_right_more_often_than_chance(length: int) -> None:
    _, answers = tasks.draw(np.random.default_rng(5), 600, length)
    for task, of_task in zip(tasks.TASKS, answers, strict=True):
        counts = np.bincount(of_task[of_task != tasks.NOT_ASKED], minlength=task.answers)
        assert len(counts) == task.answers
        assert counts.max() / counts.sum() < task.chance + 0.01


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        tasks.draw(np.random.default_rng(0), 1, 15)


# training


@pytest.mark.all
def test_positions_are_learned_and_nothing_is_learned_without(tmp_path: Path) -> None:
    setup = msgspec.structs.replace(TINY, steps=150, hidden=32, feedforward=32, length=32, rows=48, asked_rows=100)
    found = {name: one(name, setup, tmp_path / f"{name}.onnx") for name in ("nope", "absolute")}
    for task in tasks.TASKS:
        for cell in found["nope"].accuracy[task.name].values():
            assert cell < task.chance + 0.1
    assert found["absolute"].accuracy["order"]["32"] > 0.65
    assert found["absolute"].accuracy["marker"]["32"] > 0.4
    assert found["absolute"].loss < found["nope"].loss - 0.5


def test_models_differ_in_their_encoding_alone() -> None:
    import torch

    nope, absolute, again = make("nope", TINY), make("absolute", TINY), make("absolute", TINY)
    own = {id(parameter) for parameter in own_parameters(absolute)}
    shared = dict(nope.named_parameters())
    for name, parameter in absolute.named_parameters():
        assert (id(parameter) in own) == (name not in shared)
        if name in shared:
            assert torch.equal(parameter, shared[name])
        assert torch.equal(parameter, again.get_parameter(name))
    assert sum(parameter.numel() for parameter in own_parameters(absolute)) == 24 * 16


def test_the_same_seed_gives_the_same_model() -> None:
    def trained(seed: int) -> float:
        setup = msgspec.structs.replace(TINY, seed=seed)
        return train(make("t5", setup), setup)

    assert trained(1) == trained(1) != trained(2)


@pytest.mark.all
def test_questions_that_do_not_come_up_are_no_loss_and_no_accuracy(tmp_path: Path) -> None:
    # the row is too short for the marker's four answers, wherever it stands
    setup = msgspec.structs.replace(TINY, length=16, rows=2, asked_rows=2)
    assert 0 < train(make("nope", setup), setup) < 20
    with pytest.raises(PosexportError, match="2 rows of 16 tokens do not ask marker once"):
        one("nope", setup, tmp_path / "nope.onnx")


# the tables


@pytest.mark.all  # of a comparison that trains
def test_what_a_row_says_is_what_the_exported_model_does(run) -> None:
    target, document, _ = run
    rows = {row.encoding: row for row in document.rows}
    assert list(rows) == ["nope", "axial", "relative-key", "rope"]
    for name in ("nope", "relative-key", "rope"):
        row, path = rows[name], target / "models" / f"{name}.onnx"
        assert row.status == "measured"
        assert row.file_bytes == path.stat().st_size
        assert row.latency_ms > 0
        assert row.latency_to_nope > 0
        # independent count over the questions, with a plain session
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        tokens, answers = tasks.draw(np.random.default_rng([TINY.seed, 1, 24]), TINY.asked_rows, 24)
        (logits,) = session.run(None, {"input_ids": tokens, "attention_mask": np.ones_like(tokens)})
        marker = logits[..., 10:14].argmax(-1)
        asked = answers[2] >= 0
        agree(row.accuracy["marker"]["24"], (marker == answers[2])[asked].mean(), "rounded", np.float64)
    assert rows["nope"].memory_to_nope in (1.0, None)
    assert rows["relative-key"].own_parameters == (2 * 24 - 1) * 8
    assert rows["relative-key"].parameters == rows["nope"].parameters + rows["relative-key"].own_parameters


@pytest.mark.all  # of a comparison that trains
def test_beyond_its_table_an_encoding_shows_limit(run) -> None:
    rows = {row.encoding: row for row in run[1].rows}
    assert rows["relative-key"].limit == 24
    for of_task in rows["relative-key"].accuracy.values():
        assert isinstance(of_task["24"], float)
        assert (of_task["48"], of_task["96"]) == (LIMIT, LIMIT)
    assert all(isinstance(cell, float) for of_task in rows["rope"].accuracy.values() for cell in of_task.values())


@pytest.mark.all  # of a comparison that trains
def test_an_encoding_for_images_is_not_applicable(run) -> None:
    (row,) = [row for row in run[1].rows if row.encoding == "axial"]
    assert row.status == "not applicable"
    assert "coordinates" in row.reason


@pytest.mark.all  # of a comparison that trains
def test_csv_json_and_page_say_the_same(run) -> None:
    target, document, _ = run
    assert msgspec.json.decode((target / "compare.json").read_bytes(), type=Document) == document
    lines = list(csv.DictReader(io.StringIO((target / "compare.csv").read_text())))
    text = (target / "compare.html").read_text()
    assert [line["encoding"] for line in lines] == [row.encoding for row in document.rows]
    for line, row in zip(lines, document.rows, strict=True):
        assert line["status"] == row.status
        assert line["reason"] == row.reason
        for task in document.tasks:
            for length in document.lengths:
                cell = row.accuracy.get(task.name, {}).get(str(length), "")
                assert line[f"{task.name}_{length}"] == str(cell)
        for figure in ("parameters", "file_bytes", "latency_to_nope", "memory_bytes"):
            value = getattr(row, figure)
            assert line[figure] == ("" if value is None else str(value))
        assert row.encoding in text
    assert text.count('class="limit"') == 3 * 2
    assert not re.search(r'src="(?!data:)|https?://', text)
    (link,) = re.findall(r'href="([^"#][^"]*)"', text)
    assert base64.b64decode(link.removeprefix("data:text/csv;base64,")) == (target / "compare.csv").read_bytes()


@pytest.mark.all  # of a comparison that trains
def test_progress_counts_training_and_measuring(run) -> None:
    moves = run[2]
    # a training is told when it is done, a measurement when it begins
    assert [done for done, _, _ in moves] == [0, 1, 2, 3, 3, 4, 5]
    assert {total for _, total, _ in moves} == {6}


def documents() -> Document:
    """Every kind of row, made up."""
    accuracy = {task.name: {"24": 1.0, "48": 0.5, "96": 0.25} for task in tasks.TASKS}
    ended = {task.name: {"24": 0.75, "48": LIMIT, "96": LIMIT} for task in tasks.TASKS}
    plain = Result(
        encoding="nope",
        limit=None,
        parameters=10,
        own_parameters=0,
        file_bytes=2000,
        loss=1.0,
        accuracy=accuracy,
        seconds=1.0,
        cost=Cost(ms=2.0, to_nope=1.0, growth=400),
    )
    costly = msgspec.structs.replace(
        plain, encoding="absolute", accuracy=ended, cost=Cost(ms=3.0, to_nope=1.5, growth=600)
    )
    unknown = msgspec.structs.replace(plain, encoding="rope", cost=Cost(ms=2.0, to_nope=1.0, growth=None))
    rows = [measured(result, plain, ["embed"]) for result in (plain, costly, unknown)]
    rows.append(TableRow(encoding="swin", status="not applicable", reason="for <images>"))
    rows.append(TableRow(encoding="t5", status="failed", reason="it diverged"))
    told = [TaskInfo(name=t.name, question=t.question, answers=t.answers, chance=t.chance) for t in tasks.TASKS]
    return Document(setup=TINY, lengths=list(TINY.lengths), tasks=told, rows=rows)


def test_ratios_are_to_nope() -> None:
    nope, absolute, rope, *_ = documents().rows
    assert (nope.latency_to_nope, nope.memory_to_nope) == (1.0, 1.0)
    assert (absolute.latency_to_nope, absolute.memory_to_nope) == (1.5, 1.5)
    assert (rope.latency_to_nope, rope.memory_to_nope) == (1.0, None)
    assert absolute.mean(24) == 0.75
    assert absolute.mean(48) is None


@pytest.mark.all
def test_every_form_shows_every_kind_of_row() -> None:
    document = documents()
    assert not document.good
    text = to_text(document)
    assert re.search(r"absolute +(75 % limit limit +){3}10 +2 +1\.50 +1\.50\n", text)
    assert "swin: not applicable: for <images>\n" in text
    assert "t5: failed: it diverged\n" in text
    assert "swin,not applicable," in to_csv(document).decode()
    assert "for &lt;images&gt;" in page(document).decode()
    assert [">limit</text>" in drawn(picture) for picture in against_length(document)] == [False, True, False]
    assert ">absolute</text>" in drawn(against_latency(document, 24))
    assert ">absolute</text>" not in drawn(against_latency(document, 48))
    assert "limit: absolute" in drawn(against_latency(document, 48))


def drawn(picture: dict[str, str]) -> str:
    """The SVG of an image."""
    return base64.b64decode(picture["src"].partition(",")[2]).decode()


def test_no_name_covers_another() -> None:
    """Points that are alike have names at different heights, in their order."""
    document = documents()
    rows = [
        msgspec.structs.replace(document.rows[0], encoding=f"e{i:02}", latency_to_nope=1 + i / 100) for i in range(25)
    ]
    text = drawn(against_latency(msgspec.structs.replace(document, rows=rows), 24))
    heights = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>e\d\d<', text)]
    assert len(heights) == 25
    assert all(low - high >= 13 for low, high in itertools.pairwise(heights))


def test_the_page_has_the_table_first_and_fits_a_phone() -> None:
    text = page(documents()).decode()
    assert '<meta name="viewport" content="width=device-width' in text
    assert text.index("<table") < text.index("<img")
    before = text[: text.index("<table")]
    assert before.rstrip().rpartition("\n")[2].startswith('<div class="box" '), "the table scrolls in its own box"
    assert re.search(r"\.box \{[^}]*overflow: auto", text)
    assert re.search(r"tr > :first-child \{[^}]*position: sticky; left: 0", text)
    assert text.count('<img src="data:image/svg+xml;base64,') == 6
    # 330 of a phone's 360 pixels are the chart's
    for picture in [*against_length(documents()), *(against_latency(documents(), n) for n in (24, 48, 96))]:
        sizes = re.findall(r"font-size: ([\d.]+)px", drawn(picture))
        assert min(map(float, sizes)) * min(1, 330 / float(picture["width"])) >= 8


def test_the_page_says_whether_anything_was_learned() -> None:
    document = documents()
    assert document.learned == ["nope", "absolute", "rope"]
    assert "3 steps: 3 of 3 encodings answer a question better than\nguessing." in page(document).decode()
    chance = {task.name: {"24": task.chance, "48": 0.0, "96": 0.0} for task in tasks.TASKS}
    rows = [msgspec.structs.replace(row, accuracy=chance) for row in document.rows if row.status == "measured"]
    untrained = page(msgspec.structs.replace(document, rows=rows)).decode()
    assert '<p class="verdict less">3 steps: not trained.' in untrained


def test_nope_is_one_and_its_noise_is_told() -> None:
    """It is timed beside a second session of itself, which is never exactly as fast."""
    nope = Result(
        encoding="nope",
        limit=None,
        parameters=10,
        own_parameters=0,
        file_bytes=2000,
        loss=1.0,
        accuracy={task.name: {"24": 1.0} for task in tasks.TASKS},
        seconds=1.0,
        cost=Cost(ms=2.1, to_nope=1.05, growth=400),
    )
    assert measured(nope, nope, []).latency_to_nope == 1.0
    agree(noise(nope), 0.05, "operator", np.float64)
    document = msgspec.structs.replace(documents(), noise=noise(nope))
    assert "sessions of <code>nope</code> differed by 5 %" in page(document).decode()
    assert "two sessions of nope differ by 5 %" in to_text(document)


# the directory


@pytest.mark.all  # of a comparison that trains
def test_a_finished_comparison_is_replaced_with_force_only(run) -> None:
    target, _, _ = run
    before = (target / "compare.json").read_bytes()
    with pytest.raises(PosexportError, match="holds a comparison; give --force to replace it"):
        compare(target, ["rope"], TINY)
    assert (target / "compare.json").read_bytes() == before


def test_an_interrupted_run_begins_again(tmp_path: Path) -> None:
    for name in ("models/rope.onnx", ".compare.json.0123abcd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("left by a kill")
    with opened(tmp_path, force=False):
        assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "compare.csv").write_text("")
    with opened(tmp_path, force=True):
        assert not (tmp_path / "compare.csv").exists()


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        opened(tmp_path, force=False),
        pytest.raises(PosexportError, match="another run is writing"),
        opened(tmp_path, force=False),
    ):
        pass


def test_a_call_that_fails_does_not_end_the_others() -> None:
    found = dict(each(divmod, {"good": (7, 2), "bad": (1, 0)}, processes=1))
    assert found["good"] == (3, 1)
    assert isinstance(found["bad"], PosexportError)
    assert str(found["bad"]).startswith("ZeroDivisionError: ")


def test_a_process_that_is_killed_is_one_sentence() -> None:
    import os

    with pytest.raises(PosexportError, match=r"was killed.*give fewer --jobs"):
        list(each(os._exit, {"gone": (3,)}, processes=1))


# bad input


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--encodings", "rope,sinusodial"], "unknown encoding 'sinusodial'.*did you mean sinusoidal"),
        (["--encodings", ","], "names none"),
        (["--steps", "0"], "--steps"),
        (["--jobs", "0"], "--jobs"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path: Path, args: list[str], words: str) -> None:
    outcome = CliRunner().invoke(group, ["compare", "-o", str(tmp_path / "out"), *args])
    said = outcome.output if isinstance(outcome.exception, SystemExit) else str(outcome.exception)
    assert isinstance(outcome.exception, (SystemExit, PosexportError))
    assert re.search(words, said)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(PosexportError, match=r"holds other things \(thesis.txt\)"):
            compare(tmp_path, ["nope"], TINY, force=force)
    with pytest.raises(PosexportError, match="is a file"):
        compare(tmp_path / "thesis.txt", ["nope"], TINY)
    with pytest.raises(PosexportError, match="is not a directory"):
        compare(tmp_path / "thesis.txt" / "below", ["nope"], TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_without_matplotlib_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.base.system.extras.is_installed", lambda module: module != "matplotlib")
    with pytest.raises(PosexportError, match=r"posexport compare needs matplotlib.*posexport\[plots\]"):
        compare(tmp_path / "out", ["nope"], TINY)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"steps": 0}, "steps must be at least 1"), ({"length": 15}, "length must be"), ({"hidden": 15}, "multiple")],
)
def test_a_setup_that_cannot_be_trained_is_refused(tmp_path: Path, change: dict[str, int], words: str) -> None:
    with pytest.raises(PosexportError, match=words):
        compare(tmp_path / "out", ["nope"], msgspec.structs.replace(TINY, **change))
    assert not (tmp_path / "out").exists()


@pytest.mark.all  # of a comparison that trains
def test_the_command_prints_one_document(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import posexport.study.compare.comparison

    asked = {}

    def finished(target: Path, names: list[str], setup: Setup, **others: object) -> Document:
        asked.update({"target": target, "names": names, "setup": setup, **others})
        return run[1]

    monkeypatch.setattr(posexport.study.compare.comparison, "compare", finished)
    args = ["compare", "--encodings", "rope, t5", "--encodings", "nope", "--steps", "7", "-o", str(tmp_path), "--json"]
    outcome = CliRunner().invoke(group, args)
    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout)["rows"][0]["encoding"] == "nope"
    assert asked["names"] == ["rope", "t5", "nope"]
    assert asked["setup"].steps == 7
    assert asked["jobs"] == 2
    failed = msgspec.structs.replace(run[1], rows=[TableRow(encoding="t5", status="failed", reason="it diverged")])
    monkeypatch.setattr(posexport.study.compare.comparison, "compare", lambda *_, **__: failed)
    assert CliRunner().invoke(group, args).exit_code == 1
