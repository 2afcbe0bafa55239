"""posexport audit"""

import sys
from pathlib import Path
from typing import Any

import click

from posexport.base.options.commands import AUDIT_GROUPS, AuditOptions
from posexport.cli import complete
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups
from posexport.inspect.audit.finding import SEVERITIES
from posexport.inspect.audit.settings import settings_of

_FORMATS = ("text", "json", "sarif", "github", "html")


def _explain(ctx: click.Context, _parameter: click.Parameter, code: str | None) -> None:
    if code is None or ctx.resilient_parsing:
        return
    from posexport.inspect.audit.formats.explanation import explanation
    from posexport.inspect.audit.registry import RULES
    from posexport.inspect.audit.settings import check_codes

    if code not in RULES.names:
        check_codes([code], sorted(RULES.names), "--explain")
        code = min(name for name in RULES.names if name.startswith(code))
    click.echo(explanation(RULES[code]))
    ctx.exit()


def _fix(
    target: Path, codes: str | None, output: Path | None, options: AuditOptions, *, force: bool, as_json: bool
) -> None:
    """Repair a file, and print what was changed; exit code 1 if it is not written."""
    import msgspec

    from posexport.errors import PosexportError
    from posexport.inspect.audit.fix import fix

    if codes is None or output is None:
        given, needed = ("--fix", "-o FILE") if output is None else ("-o", "--fix CODE,...")
        raise PosexportError(f"{given} needs {needed} too: a repaired file is a new file")
    done = fix(target, [code.strip() for code in codes.split(",")], output, force=force, options=options)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(done), indent=2).decode())
    else:
        click.echo("\n".join(done.lines()))
    sys.exit(1 if done.refused else 0)


@click.command("audit", cls=Command, groups=groups(AuditOptions, AUDIT_GROUPS, {}))
@click.argument("target", type=click.Path(path_type=Path), shell_complete=complete.bundles_or_models)
@all_of(AuditOptions)
@click.option(
    "--explain",
    metavar="CODE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    shell_complete=complete.names("rules"),
    help="Print what a rule finds, why it matters and what to do, with a bad and a good graph.",
)
@click.option(
    "--output-format",
    "style",
    type=click.Choice(_FORMATS),
    default="text",
    help="How findings are printed; default: text.",
)
@click.option("--details", is_flag=True, help="Print nodes, reason and remedy below each finding.")
@click.option(
    "--fix",
    "codes",
    metavar="CODE,...",
    help="Repair the findings of these rules, and write the file that -o names; everything else in it stays as it is.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The repaired file.")
@click.option("--force", is_flag=True, help="Replace the file that -o names.")
@click.option("--json", "as_json", is_flag=True, help="The same as --output-format json.")
@click.option(
    "--fail-on",
    type=click.Choice((*SEVERITIES, "never")),
    help="Exit 1 at findings of this severity or worse; default: error.",
)
def command(
    target: Path,
    style: str,
    details: bool,
    codes: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    fail_on: str | None,
    **choices: Any,
) -> None:
    """Find what any ONNX file gets wrong, and what to do.

    TARGET is an .onnx file or a folder with some. Weights stay on disk, and nothing of the graph is run
    without --run. Each rule has a code; posexport list rules has all. Defaults are read from [tool.posexport.audit] of
    pyproject.toml.

    \b
    Example:
        posexport audit model.onnx
        posexport audit path/to/repository --select PX1 --select PX2 --details
        posexport audit model.onnx --output-format sarif > audit.sarif
        posexport audit model.onnx --output-format html > audit.html
        posexport audit model.onnx --fix PX101,PX201 -o repaired.onnx
        posexport audit --explain PX201
        posexport audit model.onnx --run --memory 8GB
        posexport audit model.onnx --run --provider cpu --provider webgpu
    """
    import posexport

    if codes is not None or output is not None:
        _fix(target, codes, output, AuditOptions(**choices), force=force, as_json=as_json)
    settings = settings_of(target if target.is_dir() else target.parent)
    source, default = click.get_current_context().get_parameter_source, click.core.ParameterSource.DEFAULT
    given = {name: value for name, value in choices.items() if source(name) != default}
    defaults = {name: value for name in ("select", "ignore", "provider") if (value := getattr(settings, name))}
    findings = posexport.audit(target, **{**defaults, **given})
    style = "json" if as_json else style
    if style == "json":
        click.echo(findings.to_json())
    elif style == "sarif":
        from posexport.inspect.audit.formats import sarif

        click.echo(sarif.document(findings))
    elif style == "html":
        from posexport.inspect.report.audit_page import audit_page

        click.echo(audit_page(findings, target), nl=False)
    else:
        from posexport.inspect.audit.formats import github, text

        shown = github.lines(findings) if style == "github" else text.lines(findings, details=details)
        click.echo("\n".join(shown))
    threshold = fail_on or settings.fail_on or "error"
    failed = [severity for severity in SEVERITIES if severity == threshold and findings.at_least(severity)]
    sys.exit(1 if failed else 0)
