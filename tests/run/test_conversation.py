"""A chat that keeps its cache: each turn has the tokens of a fresh call, and computes its own tokens only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import posexport
from posexport import PosexportError, Session
from posexport.run.kept_cache import KeptCache
from tests.tiny_bundle import write_bundle

SIZES = {"layers": 2, "hidden": 20, "heads": 5, "feedforward": 37, "vocab": 61, "tied": False}
#: beyond 12 tokens all cached keys are others
LONGROPE = {"max_positions": 12, "short_factor": 1, "long_factor": 9}
#: name -> model, its settings, options of the conversion
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rope": ("decoder-rope", {}, {}),
    "absolute": ("decoder-absolute", {"max_positions": 23}, {}),
    "static": ("decoder-rope", {}, {"cache": "static"}),
    "longrope": ("decoder-rope-longrope", LONGROPE, {}),
}
NEW = 4


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Session]:
    opened: dict[str, Session] = {}

    def load(name: str) -> Session:
        if name not in opened:
            model, settings, options = MODELS[name]
            bundle = tmp_path_factory.mktemp("chats") / name
            posexport.convert(model, bundle, settings=SIZES | settings, target="cpu", verify=False, **options)
            opened[name] = posexport.load(bundle, threads=1)
        return opened[name]

    return load


def fresh(session: Session, prompt: list[int]) -> list[int]:
    return session.generate([prompt], max_new_tokens=NEW).completions[0].tokens


def turns(session: Session) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Prompts with their answers in one chat, and the tokens that each turn computed.

    The second goes on after the answer, the third says something else after 6 tokens, the fourth is the third again,
    the fifth is shorter.
    """
    chat = session.chat(max_new_tokens=NEW)
    told: list[tuple[list[int], list[int]]] = []
    computed: list[int] = []
    prompt = [7, 8, 9, 10]
    for number in range(5):
        before = chat.computed_tokens
        answer = chat.generate(prompt).completions[0].tokens
        told.append((prompt, answer))
        computed.append(chat.computed_tokens - before)
        if number == 0:
            prompt = [*prompt, *answer, 3, 1, 4, 1, 5]
        elif number == 1:
            prompt = [*prompt[:6], 50, 51, 52]
        elif number == 3:
            prompt = prompt[:3]
    return told, computed


def steps(answer: list[int]) -> int:
    """The tokens of an answer that are read: all but the last."""
    return len(answer) - 1


@pytest.mark.all(but=("[rope", "[longrope"))
@pytest.mark.parametrize("name", MODELS)
def test_every_turn_has_the_tokens_of_a_fresh_call(name: str, session: Callable[[str], Session]) -> None:
    opened = session(name)
    told, computed = turns(opened)
    assert [answer for _, answer in told] == [fresh(opened, prompt) for prompt, _ in told]
    assert len({token for _, answer in told for token in answer}) > 5, "too monotonous to show an error"
    if name == "longrope":
        return
    # the first whole; the last token of its answer and five more; three; the last of three; the last of three
    assert computed == [new + steps(answer) for new, (_, answer) in zip((4, 6, 3, 1, 1), told, strict=True)]


def test_keys_that_depend_on_the_length_are_computed_again(session: Callable[[str], Session]) -> None:
    _, computed = turns(session("longrope"))
    # 13 tokens are beyond the threshold, so the second turn reads all, and the third all of its nine
    assert computed == [new + NEW - 1 for new in (4, 13, 9, 1, 1)]


def test_what_differs_is_not_kept(session: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is cut too late, or not at all, has other answers."""
    opened = session("rope")
    late = lambda cache, prompt: min(cache.slots, len(prompt) - 1)  # noqa: E731
    monkeypatch.setattr(KeptCache, "_shared", late)
    told, _ = turns(opened)
    assert [answer for _, answer in told] != [fresh(opened, prompt) for prompt, _ in told]


def test_keys_of_another_length_are_not_kept(
    session: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, begin = session("longrope"), KeptCache.begin
    monkeypatch.setattr(
        KeptCache, "begin", lambda self, prompt, room, **_: begin(self, prompt, room, threshold=None, at_once=False)
    )
    told, _ = turns(opened)
    assert [answer for _, answer in told] != [fresh(opened, prompt) for prompt, _ in told]


@pytest.mark.all
def test_states_go_back_to_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions and attention (LFM2): a prompt that differs from the answer on goes on from the last prompt."""
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    tiny.make(tmp_path / "lfm2", tiny.table()["lfm2"])
    posexport.convert(tmp_path / "lfm2", tmp_path / "bundle", target="portable", verify=False)
    session = posexport.load(tmp_path / "bundle", threads=1)

    def run() -> tuple[list[tuple[list[int], list[int]]], list[int]]:
        told, computed = turns(session)
        chat = session.chat(max_new_tokens=NEW)
        prompt = [5, 9, 11, 2, 8]
        told.append((prompt, chat.generate(prompt).completions[0].tokens))
        before, after = chat.computed_tokens, [*prompt, 30, 7]  # a template leaves the answer's thoughts out
        told.append((after, chat.generate(after).completions[0].tokens))
        return told, [*computed, chat.computed_tokens - before]

    told, computed = run()
    wanted = [fresh(session, prompt) for prompt, _ in told]
    assert [answer for _, answer in told] == wanted
    assert (computed[1], computed[-1]) == (6 + NEW - 1, 2 + NEW - 1)
    monkeypatch.setattr(KeptCache, "_states", [])
    broken, _ = run()
    assert [answer for _, answer in broken] != wanted


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Session:
    from tests.docs_models import checkpoint

    at = tmp_path_factory.mktemp("spoken")
    checkpoint("SmolLM2", at / "model")
    posexport.convert(str(at / "model"), at / "bundle", target="cpu", verify=False)
    return posexport.load(at / "bundle", threads=1)


def test_messages_are_a_chat(spoken: Session) -> None:
    chat = spoken.chat(messages=[{"role": "system", "content": "be brief"}], max_new_tokens=NEW)
    pieces: list[str] = []
    first = chat.send("Who wrote Faust?", streamer=lambda _, piece: pieces.append(piece))
    assert "".join(pieces) == first.text
    before = chat.computed_tokens
    second = chat.send({"role": "user", "content": "When?"}, max_new_tokens=3)
    assert [turn["role"] for turn in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert second.tokens == spoken.generate([chat.messages[:-1]], max_new_tokens=3).completions[0].tokens
    assert chat.computed_tokens - before < len(second.prompt_tokens)
    # a chat goes on after a change
    chat.messages = chat.messages[:1]
    again = chat.send("Who wrote Faust?")
    assert again.tokens == first.tokens


def test_what_is_not_kept_is_refused(spoken: Session, tmp_path: Path) -> None:
    chat = spoken.chat()
    with pytest.raises(PosexportError, match="a chat has one answer to a prompt; give num_beams=1"):
        chat.send("a", num_beams=2)
    assert not chat.messages
    write_bundle(tmp_path / "tiny")
    with pytest.raises(PosexportError, match="generate needs a text-generation"):
        posexport.load(tmp_path / "tiny").chat().generate([1, 2])
