"""What adapters share: requests checked alone, joined by tokens, errors told to whom they belong. No engine needed."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from posexport import PosexportError
from posexport.serve.engines.batcher import Batcher
from posexport.serve.engines.service import Outputs, Request, Service
from tests.tiny_bundle import LIMIT, rewrite, tiny_model, write_bundle

TEXTS = ["a", "a cat", "dog sits", "a cat sits a dog", "cat"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a sum in place of the mean, in which padding would count."""
    model = tiny_model()
    for node in model.graph.node:
        node.op_type = node.op_type.replace("ReduceMean", "ReduceSum")
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny", model=model, texts=True)


@pytest.fixture(scope="module")
def service(bundle: Path) -> Service:
    return Service(bundle, batch_tokens=8)


def test_joined_requests_get_the_rows_of_encode(service: Service) -> None:
    requests = [service.texts(TEXTS[:2]), service.texts([TEXTS[3]]), service.texts(TEXTS)]
    assert [request.tokens for request in requests] == [2 + 3, 6, 2 + 3 + 3 + 6 + 2], "[CLS] before each"
    found = service.compute(requests)
    for request, outputs in zip(requests, found, strict=True):
        assert isinstance(outputs, dict)
        alone = np.stack([service._session.encode([text])[0] for text in request.texts])
        np.testing.assert_array_equal(outputs["sentence_embedding"], alone)


def test_an_error_is_of_one_request(service: Service) -> None:
    ids = {"input_ids": [[1, 2]]}
    good, bad = service.arrays(ids), service.arrays({"input_ids": [[1, 99]]})
    found = service.compute([bad, service.texts(["a cat"]), good])
    assert isinstance(found[0], PosexportError)
    assert "holds 99" in str(found[0])
    assert isinstance(found[1], dict)
    assert isinstance(found[2], dict)
    np.testing.assert_array_equal(found[2]["last_hidden_state"], service._session.run(ids)["last_hidden_state"])


def test_too_little_memory_for_a_batch_is_told_to_its_requests(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = service._session.encode

    def short(texts: Sequence[str], **options: object) -> object:
        if len(texts[0].split()) > 3:
            raise PosexportError("there is not enough memory for it")
        return encode(texts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(service._session, "encode", short)
    long, brief = service.compute([service.texts([TEXTS[3]]), service.texts(["dog"])])
    assert isinstance(long, PosexportError)
    assert isinstance(brief, dict)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([], "got no texts; give at least one"),
        ("a cat", "texts must be a list of strings, got str"),
        ([1], "texts must be a list of strings"),
        (["a " * LIMIT], f"text 0 has {LIMIT + 1} tokens, this bundle takes at most {LIMIT}"),
        (["a" * 1_000_001], "the request has 1000001 characters of text, this deployment takes at most 1000000"),
        (["a"] * 2 + ["\ud800"], "text 2 .* is not Unicode"),
    ],
)
def test_bad_texts_are_refused(texts: object, sentence: str, service: Service) -> None:
    with pytest.raises(PosexportError, match=sentence):
        service.texts(texts)


def test_bad_arrays_are_refused(service: Service, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="got no inputs; give input_ids, attention_mask, token_type_ids"):
        service.arrays({})
    (found,) = service.compute([service.arrays({"input_ids": [[1, 2], [3]]})])
    assert "rows differ in length" in str(found)
    with pytest.raises(PosexportError, match="unknown prompt_name 'query'; this bundle has none"):
        service.texts(["a"], "query")
    without = Service(write_bundle(tmp_path / "arrays"))
    with pytest.raises(PosexportError, match="this bundle takes arrays, not texts: give input_ids"):
        without.texts(["a"])
    without.probe()


def test_a_bundle_of_another_provider_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="batch_tokens must be at least 1, got 0"):
        Service(bundle, batch_tokens=0)
    other = write_bundle(tmp_path / "cuda", texts=True)
    rewrite(other, target="cuda")
    with pytest.raises(PosexportError, match="was converted with --target cuda, the deployment is for cpu"):
        Service(other)


class Slow:
    """Computes when it is let; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()

    def __call__(self, requests: Sequence[Request]) -> list[Outputs | PosexportError]:
        self.batches.append([request.tokens for request in requests])
        assert self.free.wait(5)
        if any(request.tokens == 13 for request in requests):
            raise ZeroDivisionError("a defect")
        return [
            PosexportError("seven") if request.tokens == 7 else {"tokens": np.array(request.tokens)}
            for request in requests
        ]


def submitted(tokens: Sequence[int], budget: int, *, cancelled: Sequence[int] = ()) -> tuple[Slow, list[object]]:
    """What a batcher gives for requests of so many tokens, of which the first is computed while the others come."""
    compute = Slow()
    told: list[tuple[int, int]] = []

    async def run() -> list[object]:
        batcher = Batcher(compute, budget, lambda *batch: told.append(batch))
        tasks = [asyncio.create_task(batcher.submit(Request(tokens=number))) for number in tokens]
        await asyncio.sleep(0.05)
        for place in cancelled:
            tasks[place].cancel()
        await asyncio.sleep(0.01)
        compute.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        return found

    found = asyncio.run(run())
    assert told == [(len(batch), sum(batch)) for batch in compute.batches]
    return compute, found


def numbers(found: list[object]) -> list[object]:
    return [int(each["tokens"]) if isinstance(each, dict) else type(each).__name__ for each in found]


def test_what_comes_while_a_batch_runs_is_the_next_one() -> None:
    compute, found = submitted([10, 20, 30, 40, 50, 300, 5], 100)
    # all are waiting when the worker looks first, in the order in which they came
    assert compute.batches == [[10, 20, 30, 40], [50], [300], [5]]
    assert numbers(found) == [10, 20, 30, 40, 50, 300, 5]


def test_an_error_and_a_defect_reach_their_callers_and_the_worker_lives_on() -> None:
    compute, found = submitted([7, 90, 13, 80, 60], 100)
    assert numbers(found) == ["PosexportError", 90, "ZeroDivisionError", "ZeroDivisionError", 60]
    assert compute.batches == [[7, 90], [13, 80], [60]]


def test_a_cancelled_request_is_not_computed_and_hurts_nobody() -> None:
    compute, found = submitted([100, 20, 30, 40], 100, cancelled=(0, 2))
    assert numbers(found) == ["CancelledError", 20, "CancelledError", 40]
    assert compute.batches == [[100], [20, 40]], "what runs is finished and thrown away"


def test_nobody_waits_on_an_idle_machine() -> None:
    async def run() -> float:
        batcher = Batcher(lambda requests: [{} for _ in requests], 100)
        start = time.perf_counter()
        for _ in range(20):
            await batcher.submit(Request(tokens=1))
        batcher.close()
        return time.perf_counter() - start

    assert asyncio.run(run()) < 1
