"""RoFormer's segmentation of Chinese by the library rjieba, which tokenizer.json has no field for."""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch


def apply(_: Content, settings: Settings) -> list[str]:
    if settings.name != "RoFormerTokenizer":
        return []
    return [
        "RoFormerTokenizer splits Chinese into words by rjieba, for which tokenizer.json has no field: Chinese texts "
        "get other ids from this bundle; give ids"
    ]


SWITCH = Switch((), apply)
