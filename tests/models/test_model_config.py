"""Records of settings: flat names, defaults that a record changes, values that do not fit."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.models.encoder import EncoderConfig
from posexport.models.layer import LayerConfig
from posexport.nn.config import Config, named
from posexport.sources.definitions import KINDS
from posexport.sources.definitions.decoder import EncoderDecoderSettings


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    size: int = named("inner_size", 3)
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Outer(Config):
    inner: Inner = field(default_factory=lambda: Inner(bias=False))
    hidden: int = 5


def test_flat_names_reach_the_record_that_has_them() -> None:
    assert Outer.settings() == {"inner_size": int, "bias": bool, "hidden": int}
    assert Outer.of() == Outer(inner=Inner(size=3, bias=False), hidden=5)
    assert Outer.of(inner_size=7, hidden=2) == Outer(inner=Inner(size=7, bias=False), hidden=2)
    assert Outer.of(inner_size=7).changed(bias=True) == Outer(inner=Inner(size=7, bias=True), hidden=5)


def test_an_unknown_name_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError, match="Outer has no setting size"):
        Outer.of(size=7)
    assert Outer.of().changed(size=7) == Outer.of()


def test_every_flat_name_is_one_setting() -> None:
    def names(config: Config) -> list[str]:
        return [
            name
            for key, value in vars(config).items()
            for name in (names(value) if isinstance(value, Config) else [key_of(config, key)])
        ]

    def key_of(config: Config, key: str) -> str:
        flat = config.__dataclass_fields__[key].metadata.get("flat", key)
        assert isinstance(flat, str)
        return flat

    for kind in KINDS:
        if kind.config is not EncoderDecoderSettings:  # its halves share theirs
            found = names(kind.config.of(**kind.defaults))
            assert max(Counter(found).values()) == 1
            assert found == list(kind.config.settings())


def test_a_decoder_has_other_defaults_than_an_encoder() -> None:
    encoder, decoder = EncoderConfig.of(hidden=10, heads=2), DecoderConfig.of(hidden=10, heads=2)
    assert (encoder.layer.residual.norm, encoder.embedding.norm, encoder.final_norm) == ("post", True, False)
    assert (decoder.layer.residual.norm, decoder.embedding.norm, decoder.final_norm) == ("pre", False, True)
    assert encoder.head_size == decoder.head_size == 5
    assert LayerConfig.of(hidden=10, heads=3, head_width=4).head_size == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heads": 0}, "heads must be a whole number from 1 on, got 0"),
        ({"hidden": 11, "heads": 2}, "hidden must be a multiple of heads, got hidden=11, heads=2"),
        ({"head_width": 0}, r"head_width must be a whole number from 1 on \(or none\), got 0"),
        ({"embedding": 0}, r"embedding must be a whole number from 1 on \(or none\), got 0"),
        ({"eps": 1.0}, "eps must be a finite number from 0 to below 1, got 1.0"),
        ({"feedforward": -1}, r"feedforward must be at least 0 \(no feed-forward\), got -1"),
        ({"kv_heads": 3}, "kv_heads must divide heads=5, got 3"),
        ({"score_cap": 0.0}, r"score_cap must be a finite number above 0 \(or none\), got 0.0"),
        ({"score_cap": 2.0, "score": "concat"}, "score_cap is for score=dot, got score=concat"),
        ({"logit_cap": -1.0}, r"logit_cap must be a finite number above 0 \(or none\), got -1.0"),
        ({"parallel_norms": 1, "answer_norm": True}, "parallel_norms=1 and answer_norm exclude each other"),
        ({"padding_id": 101}, "padding_id must be from 0 to vocab - 1 = 100, got 101"),
        ({"norm": "middle"}, "norm must be post, pre or none, got 'middle'"),
        ({"heads": 2.0}, "heads must be a whole number from 1 on, got 2.0"),
    ],
)
def test_values_that_do_not_fit(settings: dict[str, object], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        DecoderConfig.of(**settings)


def test_what_only_encoders_have_is_refused() -> None:
    for name, value in (("types", 2), ("layer_groups", 1), ("dropped_id", 4)):
        with pytest.raises(PosexportError, match=f"{name} is for encoders, got {value}"):
            EncoderDecoderSettings.of(**{name: value})
        with pytest.raises(TypeError, match=f"no setting {name}"):
            DecoderConfig.of(**{name: value})
