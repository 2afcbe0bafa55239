"""Renders messages with the chat template of a bundle, like transformers' ``apply_chat_template``.

A template is Jinja code from a checkpoint. It runs in Jinja's immutable sandbox, with the options, filters and
functions of transformers 4.57: it cannot read attributes that begin with an underscore, change its arguments, read
files or import modules. It can loop forever; a template is trusted that far.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import json_object, locate
from posexport.run.tokenizer.settings import read
from posexport.run.tokenizer.special_tokens import NAMED
from posexport.run.tool_schemas import as_schemas

if TYPE_CHECKING:
    from jinja2 import Template

#: a message: at least ``role``, and ``content``, a text or a structure that the template supports
Message = Mapping[str, Any]
TEMPLATE = "chat_template.jinja"
#: further templates by name, and the names with a meaning
_ADDITIONAL, DEFAULT, TOOL_USE = "additional_chat_templates/", "default", "tool_use"
CONFIG = "tokenizer_config.json"
#: files with templates before transformers had chat_template.jinja; the first with a template is used
_OLDER = (CONFIG, "chat_template.json")
#: arguments of transformers' ``apply_chat_template`` that are neither variables of the template nor followed here
_NO_VARIABLES = {
    *("continue_final_message", "return_assistant_tokens_mask", "return_dict"),
    *("sanitize_control_tokens", "tokenize", "tokenizer_kwargs"),
}


def as_chats(prompts: Any) -> "list[list[Message]] | None":
    """``prompts`` if they are lists of messages, checked; None for texts, ids and arrays."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence) or not len(prompts):
        return None
    if all(isinstance(prompt, Mapping) for prompt in prompts):
        raise PosexportError("prompts is one list of messages; give a list of such lists, one for each prompt")
    chats = [isinstance(prompt, Sequence) and any(isinstance(turn, Mapping) for turn in prompt) for prompt in prompts]
    if not any(chats):
        return None
    for number, prompt in enumerate(prompts):
        if not chats[number] or not all(isinstance(turn, Mapping) for turn in prompt):
            raise PosexportError(
                f"prompt {number} is no list of messages, and others are; give all prompts as lists of messages"
            )
        for turn in prompt:
            if not isinstance(turn.get("role"), str):
                raise PosexportError(
                    f"a message of prompt {number} has no role; give it a role (such as user) and content"
                )
    return [list(prompt) for prompt in prompts]


class Chat:
    """The chat template of the bundle in ``directory``.

    Raises:
        PosexportError: the bundle has no template, or an invalid one.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._special = self._special_tokens()
        self._texts = self._read_texts()
        self._template(None, None)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt, which includes special tokens: tokenize it without adding them again.

        Args:
            messages: the messages of one chat.
            add_generation_prompt: end with the tokens that begin an answer of the model.
            tools: functions or JSON schemas of tools.
            documents: documents for retrieval-augmented generation.
            chat_template: the name of a template, of a bundle with several.
            variables: further variables of the template.
        """
        from jinja2.exceptions import SecurityError, TemplateError

        if unread := _NO_VARIABLES & variables.keys():
            raise PosexportError(
                f"{min(unread)} is an argument of transformers' apply_chat_template, and no variable of the chat "
                "template; leave it out"
            )
        schemas, template = as_schemas(tools), self._template(chat_template, tools)
        try:
            return template.render(
                messages=[dict(turn) for turn in messages],
                tools=schemas,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **{**self._special, **variables},
            )
        except SecurityError as err:
            raise PosexportError(
                f"the chat template of {self._directory} does what no template may ({err}); do not use "
                "it, give prompts as texts"
            ) from err
        except TemplateError as err:
            raise PosexportError(f"the chat template of {self._directory} refuses these messages: {err}") from err
        except Exception as err:  # a template may fail in any way that Python can
            raise PosexportError(
                f"the chat template of {self._directory} fails with these messages ({type(err).__name__}: {err}); give "
                "roles and contents that it knows"
            ) from err

    def _template(self, name: str | None, tools: object) -> "Template":
        """The template ``name``; by default `TOOL_USE` for tools where there is one, as in transformers."""
        chosen = name or (TOOL_USE if tools is not None and TOOL_USE in self._texts else DEFAULT)
        if chosen not in self._texts:
            raise PosexportError(
                f"{self._directory} has no chat template called {chosen!r:.60}; it has {', '.join(self._texts)}"
            )
        return _compiled(self._texts[chosen], str(self._directory))

    def _read_texts(self) -> dict[str, str]:
        """The templates by name."""
        if TEMPLATE in self._manifest.files:
            names = [name for name in self._manifest.files if name.startswith(_ADDITIONAL) and name.endswith(".jinja")]
            return {DEFAULT: self._read(TEMPLATE)} | {PurePosixPath(name).stem: self._read(name) for name in names}
        # a processor of images and text reads its own file first
        for name in _OLDER if getattr(self._manifest, "picture_rules", None) is None else _OLDER[::-1]:
            template = self._json(name).get("chat_template")
            if isinstance(template, str):
                return {DEFAULT: template}
            if isinstance(template, list):
                return self._of_list(name, template)
        raise PosexportError(
            f"{self._directory} has no chat template; give prompts as texts, or convert a checkpoint with a {TEMPLATE}"
        )

    def _read(self, name: str) -> str:
        try:
            return locate(self._directory, name).read_text(encoding="utf-8")
        except UnicodeDecodeError as err:
            raise PosexportError(f"{self._directory / name} is not UTF-8: {err}; convert again") from err

    def _of_list(self, file: str, listed: list[Any]) -> dict[str, str]:
        """The templates of a list of named ones, which must have a default."""
        named = {entry.get("name"): entry.get("template") for entry in listed if isinstance(entry, dict)}
        if not isinstance(named.get(DEFAULT), str):
            raise PosexportError(
                f"{self._directory / file} has chat templates called {', '.join(map(str, named)) or 'nothing'}, and "
                "none called default; put the entry to use in chat_template.jinja and convert again"
            )
        return {str(name): template for name, template in named.items() if isinstance(template, str)}

    def _special_tokens(self) -> dict[str, Any]:
        """Special tokens by their template variable: from the bundle's files, else the tokenizer class's defaults."""
        names = [name for name in (CONFIG, "special_tokens_map.json", "config.json") if name in self._manifest.files]
        try:
            settings = read({name: locate(self._directory, name) for name in names})
        except PosexportError as err:
            raise PosexportError(f"cannot use {self._directory}: {err}") from err
        stated = {**settings.facts.tokens, **settings.values}
        tokens = {name: _content(stated.get(name)) for name in NAMED}
        variables: dict[str, Any] = {name: token for name, token in tokens.items() if token}
        additional = stated.get("additional_special_tokens")
        if isinstance(additional, list):
            variables["additional_special_tokens"] = [token for token in map(_content, additional) if token is not None]
        return variables

    def _json(self, name: str) -> dict[str, Any]:
        return json_object(self._directory, self._manifest, name)


def _content(token: Any) -> str | None:
    """The text of a token, which files store as a string or in an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


@functools.lru_cache(maxsize=8)
def _compiled(text: str, label: str) -> "Template":
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as err:
        raise PosexportError("chat templates need the package jinja2; install it, or give prompts as texts") from err

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}``: marks the model's answers for training; renders its body."""

        tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    # as transformers has it: no access to attributes that change anything
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(text)
    except TemplateError as err:
        raise PosexportError(f"the chat template of {label} is not valid: {err}; give prompts as texts") from err
    except RecursionError as err:
        raise PosexportError(f"the chat template of {label} is nested too deeply; give prompts as texts") from err


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` without the HTML escaping of Jinja's filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
