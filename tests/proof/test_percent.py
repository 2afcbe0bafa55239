"""One count over all stages of a proof."""

from posexport.proof.percent import Percent, part


def test_stages_are_shares_of_one_count() -> None:
    told: list[tuple[int, int, str]] = []
    percent = Percent(lambda *step: told.append(step), {"branches": 10.0, "proving": 80.0, "invariants": 10.0})
    for step in ((0, 3, "branches"), (0, 58, "proving, a"), (29, 58, "proving, b"), (1, 2, "invariants"), (1, 2, "x")):
        percent(*step)
    assert told == [
        (0, 100, "branches"),
        (10, 100, "proving, a"),
        (50, 100, "proving, b"),
        (95, 100, "invariants"),
        (0, 0, "x"),
    ]


def test_a_part_of_the_whole() -> None:
    told: list[int] = []
    tell = part(lambda done, _, __: told.append(done), 60, 100)
    tell(0, 100, "a")
    tell(50, 100, "b")
    assert told == [60, 80]
