"""The line of the user's code that an exception is blamed on."""

import pytest

from posexport.base.system.user_code import line_of_error


def looked_up(cache: dict[str, int], key: str) -> int:
    try:
        return cache[key]
    except KeyError:
        return int(key)


def test_an_exception_that_the_user_s_code_handled_is_not_blamed() -> None:
    """As of a cache that lacks a key, whose value then fails to be computed."""
    with pytest.raises(ValueError, match="no number") as raised:
        looked_up({}, "no number")
    assert line_of_error(raised.value).endswith("`return int(key)`")
