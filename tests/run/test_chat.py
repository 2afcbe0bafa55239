"""Messages through a bundle's chat template (see ci/golden/chat.py).

Transformers' prompts and ids, what a template may not do, and the files that a bundle takes over from a checkpoint.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import posexport
from posexport.base.spec import PictureRules
from posexport.checkpoints.bundle_files import bundle_files
from posexport.checkpoints.directory import Directory
from posexport.cli import group
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import FileEntry, Manifest
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.run.chat import Chat, as_chats
from posexport.run.load import load
from posexport.run.texts import Texts
from posexport.run.tool_schemas import schema_of
from tests.tiny_bundle import MANIFEST

HERE = Path(__file__).parents[1]
RECORDED: dict[str, Any] = json.loads((HERE / "golden_chat.json").read_text(encoding="utf-8"))
CASES = RECORDED["cases"]
USER = [{"role": "user", "content": "hello there"}]
Bundle = Callable[[Mapping[str, Any]], tuple[Path, Manifest]]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Files beside each other and a manifest that lists them; objects are written as JSON."""

    def made(files: Mapping[str, Any]) -> tuple[Path, Manifest]:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name).write_text(text, encoding="utf-8")
        listed = {name: FileEntry(size=0, sha256="0" * 64) for name in files}
        return tmp_path, msgspec.structs.replace(MANIFEST, files=listed)

    return made


def chat_with(bundle: Bundle, template: str, **config: Any) -> Chat:
    return Chat(*bundle({"chat_template.jinja": template, "tokenizer_config.json": config}))


@pytest.mark.parametrize("case", CASES, ids=[f"{case['template']}-{case['chat']}" for case in CASES])
def test_what_transformers_renders(bundle: Bundle, case: dict[str, Any]) -> None:
    directory, manifest = bundle(
        {
            "tokenizer.json": RECORDED["tokenizer"],
            "tokenizer_config.json": RECORDED["config"],
            "chat_template.jinja": RECORDED["templates"][case["template"]],
        }
    )
    chat = Chat(directory, manifest)
    if "refused" in case:
        with pytest.raises(PosexportError, match="refuses these messages: " + case["refused"].split("/")[0]):
            chat.render(case["messages"])
        return
    prompt = chat.render(case["messages"])
    assert prompt == case["prompt"]
    # no second <s>, where the template brings one
    # the tokenizer is none of this model's: its embedding has as many rows as there are tokens
    inputs = [msgspec.structs.replace(spec, size=None) for spec in manifest.inputs]
    assert Texts(directory, msgspec.structs.replace(manifest, inputs=inputs)).pieces(prompt) == case["ids"]


def test_the_recorded_cases_say_something() -> None:
    assert {case["template"] for case in CASES if "ids" in case} == set(RECORDED["templates"])
    assert any("refused" in case for case in CASES)
    assert any(case.get("ids", [])[:1] == [1] for case in CASES)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"tokenizer_config.json": {"chat_template": "old {{ bos_token }}", "bos_token": "<s>"}}, "old <s>"),
        ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "new"}, "new"),
        ({"chat_template.json": {"chat_template": "of a processor"}}, "of a processor"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
                }
            },
            "d",
        ),
        (
            {
                "tokenizer_config.json": {"eos_token": None},
                "special_tokens_map.json": {"eos_token": {"content": "</s>"}, "additional_special_tokens": ["<x>"]},
                "chat_template.jinja": "{{ eos_token }}{{ additional_special_tokens | tojson }}",
            },
            '</s>["<x>"]',
        ),
    ],
)
def test_where_a_template_and_its_tokens_stand(bundle: Bundle, files: dict[str, Any], wanted: str) -> None:
    assert Chat(*bundle(files)).render(USER) == wanted


def test_a_model_of_images_and_text_has_the_template_of_its_processor(bundle: Bundle) -> None:
    files = {"tokenizer_config.json": {"chat_template": "tokenizer"}, "chat_template.json": {"chat_template": "both"}}
    directory, manifest = bundle(files)
    assert Chat(directory, manifest).render(USER) == "tokenizer"
    rules = PictureRules(feature_id=5)
    assert Chat(directory, msgspec.structs.replace(manifest, picture_rules=rules)).render(USER) == "both"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no chat template"),
        ({"tokenizer_config.json": {"chat_template": None}}, "has no chat template"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "t"}]}}, "called rag, and none"),
        ({"tokenizer_config.json": "{"}, "cannot use"),
        ({"chat_template.jinja": "{% if %}"}, "is not valid"),
        ({"chat_template.jinja": "{{ '\x00' }}{% for %}"}, "is not valid"),
    ],
)
def test_no_template(bundle: Bundle, files: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said) as caught:
        Chat(*bundle(files))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "does what no template may"),
        ("{{ messages.append.__globals__ }}", "does what no template may"),
        ("{{ raise_exception.__globals__['json'] }}", "does what no template may"),
        ("{% set x = messages.append(1) %}", "does what no template may"),
        ("{{ messages[0].update({'role': 'x'}) }}", "does what no template may"),
        ("{{ '{0.__class__.__mro__}'.format(1) }}", "does what no template may"),
        ("{% for i in range(10000000) %}{% endfor %}", "fails with these messages"),
        ("{% include '/etc/passwd' %}", "fails with these messages"),
        ("{% import 'os' as os %}{{ os.name }}", "fails with these messages"),
        ("{{ messages[5].role.x.y }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "fails with these messages"),
        ("{{ raise_exception('only users') }}", "refuses these messages: only users"),
    ],
)
def test_what_a_template_may_not_do(bundle: Bundle, template: str, said: str) -> None:
    with pytest.raises(PosexportError, match=said) as caught:
        chat_with(bundle, template).render(USER)
    assert str(caught.value).count("\n") == 0


def test_a_filter_does_not_get_at_hidden_attributes(bundle: Bundle) -> None:
    assert chat_with(bundle, "[{{ ''|attr('__class__') }}]").render(USER) == "[]"


def test_a_template_does_not_change_the_messages_it_is_given(bundle: Bundle) -> None:
    chat = chat_with(bundle, "{% set ns = namespace(m=messages) %}{{ ns.m[0].content }}{{ strftime_now('%Y')|length }}")
    assert chat.render(USER) == "hello there4"
    assert USER == [{"role": "user", "content": "hello there"}]


def test_lists_of_messages_are_told_from_texts_and_ids() -> None:
    assert as_chats(["a text"]) is None
    assert as_chats([[1, 2], [3]]) is None
    assert as_chats({"input_features": [[1.0]]}) is None
    assert as_chats([]) is None
    assert as_chats([USER, USER]) == [USER, USER]
    for wrong, said in (
        (USER, "one list of messages"),
        ([USER, [1, 2]], "prompt 1 is no list of messages"),
        ([USER, "text"], "prompt 1 is no list of messages"),
        ([[{"content": "x"}]], "has no role"),
    ):
        with pytest.raises(PosexportError, match=said):
            as_chats(wrong)


# what a bundle takes over

#: as the families' tokenizers and processors of transformers 4.57 call their files
TAKEN = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "normalizer.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "additional_chat_templates/rag.jinja",
    "additional_chat_templates/tool_use.jinja",
]


def test_what_is_copied_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    for name in [*TAKEN, "model.safetensors", "modeling_own.py", "additional_chat_templates/run.py", "README.md"]:
        (tmp_path / name).write_text(name)
    found = bundle_files(Directory(tmp_path), "")
    assert set(found) == set(TAKEN)
    assert {name: path.read_text() for name, path in found.items()} == {name: name for name in TAKEN}


def test_a_template_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "additional_chat_templates").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (checkpoint / "additional_chat_templates" / "x.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(PosexportError, match="leaves the directory"):
        bundle_files(Directory(checkpoint), "")


# with a model

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"
WORDS = ["<unk>", "<s>", "</s>", "<user>", "<assistant>", "<system>", "hello", "there", "be", "brief"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    target = tmp_path_factory.mktemp("chat") / "checkpoint"
    ignore = shutil.ignore_patterns("expected.safetensors")
    shutil.copytree(HERE / "golden" / "llama-forcausallm", target, ignore=ignore)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    words.add_special_tokens(WORDS[:6])
    words.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    (target / "additional_chat_templates").mkdir()
    (target / "additional_chat_templates" / "rag.jinja").write_text("rag")
    return target


@pytest.fixture(scope="module")
def converted(checkpoint: Path) -> Path:
    target = checkpoint.parent / "bundle"
    options = ConvertOptions(verify=False)
    assert convert(str(checkpoint), target, options).good
    return target


def test_a_conversation_is_continued(converted: Path) -> None:
    session = load(converted)
    chats = [[{"role": "system", "content": "be brief"}, *USER], USER]
    wanted = [[1, 5, 8, 9, 3, 6, 7, 4], [1, 3, 6, 7, 4]]
    got = session.generate(chats, max_new_tokens=5, eos_token_id=[])
    assert [one.prompt_tokens for one in got.completions] == wanted
    same = session.generate(wanted, max_new_tokens=5, eos_token_id=[])
    assert [one.tokens for one in got.completions] == [one.tokens for one in same.completions]
    assert session.render_chat(USER) == "<s><user> hello there <assistant>"


THINKING = "{% if enable_thinking is defined and not enable_thinking %}there {% endif %}<assistant>"
VARIABLES = {"enable_thinking": False}


@pytest.fixture(scope="module")
def thinking(converted: Path) -> Path:
    """A bundle whose template has a variable, and another template for tools."""
    target = converted.parent / "thinking"
    shutil.copytree(converted, target)
    (target / "chat_template.jinja").write_text(TEMPLATE.replace("<assistant>", THINKING))
    (target / "additional_chat_templates" / "rag.jinja").unlink()
    (target / "additional_chat_templates" / "tool_use.jinja").write_text("be {{ tools | length }} {{ tools | tojson }}")
    seal(target, read(target))
    return target


def test_variables_of_the_template(thinking: Path) -> None:
    session = load(thinking)
    plain, changed = [1, 3, 6, 7, 4], [1, 3, 6, 7, 7, 4]
    for variables, ids in ((None, plain), (VARIABLES, changed)):
        done = session.generate([USER], max_new_tokens=3, eos_token_id=[], chat_template_kwargs=variables)
        assert done.completions[0].prompt_tokens == ids
    expected = session.generate([changed], max_new_tokens=3, eos_token_id=[]).completions[0].text
    pieces = session.stream(USER, max_new_tokens=3, eos_token_id=[], chat_template_kwargs=VARIABLES)
    assert "".join(pieces) == expected
    with pytest.raises(PosexportError, match="chat_template_kwargs are for prompts that are lists of messages"):
        session.generate(["hello"], chat_template_kwargs=VARIABLES)
    malformed: list[Any] = [[1], {"messages": []}]
    for wrong in malformed:
        with pytest.raises(PosexportError, match="must be a dictionary of variables other than messages"):
            session.generate([USER], chat_template_kwargs=wrong)
    with pytest.raises(PosexportError, match="tokenize is an argument of transformers' apply_chat_template"):
        session.generate([USER], chat_template_kwargs={"tokenize": False})


@pytest.mark.parametrize("name", ["chat_template_kwargs", "tokenizer_encode_kwargs"])
def test_variables_of_the_template_in_a_pipeline(thinking: Path, name: str) -> None:
    session = load(thinking)
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "return_tensors": True}
    variables: dict[str, Any] = {name: VARIABLES}
    (answer,) = posexport.pipeline(session, **options)(USER, **variables)
    assert answer["generated_token_ids"][:6] == [1, 3, 6, 7, 7, 4]
    assert posexport.pipeline(session, **variables, **options)(USER) == [answer]
    with pytest.raises(PosexportError, match="the tokenizer takes no enable_thinking here"):
        posexport.pipeline(session)("hello", tokenizer_encode_kwargs=VARIABLES)


def add(x: int) -> int:
    """Add.

    Args:
        x: a number
    """
    return x + 1


def test_functions_as_tools(thinking: Path) -> None:
    session = load(thinking)
    rendered = session.render_chat(USER, tools=[add])
    assert rendered == "be 1 " + json.dumps([schema_of(add)])
    assert session.render_chat(USER, tools=[schema_of(add)]) == rendered
    assert session.render_chat(USER, tools=[add], chat_template="default").startswith("<s><user>")
    with pytest.raises(PosexportError, match="no chat template called 'rag'; it has default, tool_use"):
        session.render_chat(USER, chat_template="rag")
    with pytest.raises(PosexportError, match="a tool must be a function or a JSON schema"):
        session.generate([USER], chat_template_kwargs={"tools": ["add"]})
    ask = posexport.pipeline(session, max_new_tokens=3, do_sample=False, return_tensors=True)
    assert ask(USER, tools=[add])[0]["generated_token_ids"][0] == WORDS.index("be")


@pytest.mark.parametrize("value", ["false", "False"])
def test_variables_of_the_template_on_the_command_line(thinking: Path, value: str) -> None:
    def run(*more: str) -> Any:
        return CliRunner().invoke(group, ["generate", str(thinking), "--max-new-tokens", "3", *more])

    done = run("--chat", "--prompt", "hello there", "--chat-option", f"enable_thinking={value}", "--json")
    wanted = load(thinking).generate([USER], max_new_tokens=3, chat_template_kwargs=VARIABLES).completions[0]
    assert json.loads(done.stdout)["completions"][0]["tokens"] == wanted.tokens
    for wrong, says in (
        (("--prompt", "x", "--chat-option", "a=1"), "--chat-option is about --chat"),
        (("--chat", "--prompt", "x", "--chat-option", "a"), "--chat-option a has no value; give KEY=VALUE"),
    ):
        assert says in str(run(*wrong).exception)


def test_the_bundle_has_the_templates(converted: Path, checkpoint: Path) -> None:
    manifest = read(converted)
    for name in ("chat_template.jinja", "additional_chat_templates/rag.jinja", "tokenizer_config.json"):
        assert name in manifest.files
        assert (converted / name).read_bytes() == (checkpoint / name).read_bytes()


def test_the_command_line(converted: Path) -> None:
    def run(*more: str) -> Any:
        return CliRunner().invoke(group, ["generate", str(converted), "--max-new-tokens", "3", *more])

    done = run("--chat", "--system", "be brief", "--prompt", "hello there", "--json")
    assert done.exit_code == 0, done.output
    got = json.loads(done.stdout)["completions"][0]
    wanted = load(converted).generate([[1, 5, 8, 9, 3, 6, 7, 4]], max_new_tokens=3)
    assert (got["prompt"], got["tokens"]) == ("hello there", wanted.completions[0].tokens)
    for wrong in (("--system", "x", "--prompt", "hello"), ("--chat", "--inputs", "x.npz"), ("--chat",)):
        assert isinstance(run(*wrong).exception, PosexportError)


def test_a_bundle_without_a_template(converted: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(converted, bare)
    (bare / "chat_template.jinja").unlink()
    path = bare / "posexport.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["chat_template.jinja"]
    path.write_text(json.dumps(manifest))
    done = CliRunner().invoke(group, ["generate", str(bare), "--chat", "--prompt", "hello"])
    assert isinstance(done.exception, PosexportError)
    assert "has no chat template" in str(done.exception)


def test_without_jinja_a_sentence(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(PosexportError, match="need the package jinja2"):
        chat_with(bundle, "a template that nothing has compiled before")
