"""What ``posexport audit --explain`` prints of a rule."""

from textwrap import dedent, fill, indent

from posexport.inspect.audit.registry import GROUPS
from posexport.inspect.audit.rule import Rule


def explanation(rule: Rule) -> str:
    """A rule with its reason, its remedy and its two graphs, as Markdown."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"{rule.severity}; {GROUPS[rule.code[2]]}",
        f"Finds: {rule.finds}.",
        rule.why,
        f"What to do: {rule.remedy}",
    ]
    text = "\n\n".join(fill(part, 100) for part in parts)
    for title, graph in (("Bad", rule.bad), ("Good", rule.good)):
        if graph:
            # tables of some graphs are long
            lines = [line if len(line) <= 120 else f"{line[:117]} .." for line in dedent(graph).strip().splitlines()]
            text += f"\n\n{title}:\n\n" + indent("\n".join(lines), "    ")
    for name, content in rule.files.items():
        text += f"\n\n{name} of both:\n\n" + indent(dedent(content).strip(), "    ")
    return text
