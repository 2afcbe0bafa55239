"""A block with few collections leaves the collector as it was."""

import gc
from collections.abc import Iterator

import pytest

from posexport.base.system.garbage import few_collections


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector of these tests, which froze what was imported."""
    thresholds, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)
    if is_frozen:
        gc.freeze()


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (500_000, 20, 20), (0, 10, 10)])
def test_the_collector_is_as_before(thresholds: tuple[int, int, int]) -> None:
    gc.set_threshold(*thresholds)
    with few_collections():
        assert gc.get_freeze_count()
        assert gc.get_threshold()[0] == (0 if not thresholds[0] else max(thresholds[0], 100_000))
    assert gc.get_threshold() == thresholds
    assert not gc.get_freeze_count()


def test_what_an_application_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with few_collections():
        pass
    # some of the frozen objects may be freed meanwhile, as by other threads
    assert frozen - 100 < gc.get_freeze_count() <= frozen
