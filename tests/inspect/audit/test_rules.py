"""Every rule finds its bad graph and not its good one, where other rules find notes at most."""

from contextlib import nullcontext
from pathlib import Path

import pytest

import posexport
from posexport.base.options.commands import AuditOptions
from posexport.inspect.audit.calls.opened import opened
from posexport.inspect.audit.registry import GROUPS, RULES
from tests.inspect.audit.graphs import saved, subject

WITH_GRAPHS = sorted(code for code in RULES if RULES[code].bad)


@pytest.mark.parametrize("code", WITH_GRAPHS)
def test_a_rule_finds_its_bad_graph(code: str, tmp_path: Path) -> None:
    rule = RULES[code]
    audited = subject(rule.bad, tmp_path, rule.files, provider=rule.provider)
    with opened(audited, AuditOptions()) if rule.reads == "calls" else nullcontext() as audited.calls:
        places = list(rule.check(audited))
    assert places
    assert all(place.nodes for place in places), "a finding names its nodes"
    assert not any(place.message.endswith(".") for place in places)


@pytest.mark.parametrize("code", WITH_GRAPHS)
def test_no_rule_finds_a_fault_in_a_good_graph(code: str, tmp_path: Path) -> None:
    rule = RULES[code]
    path = saved(rule.good, tmp_path, files=rule.files)
    findings = posexport.audit(path, provider=rule.provider, run=rule.reads == "calls")
    faults = [finding for finding in findings if finding.code == code or finding.severity != "note"]
    assert [(fault.code, fault.message) for fault in faults] == []
    assert findings.skipped == {}


def test_codes_and_names_are_unique_and_grouped() -> None:
    rules = [RULES[code] for code in RULES]
    assert [rule.code for rule in rules] == list(RULES)
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.code[2] in GROUPS for rule in rules)
    assert all(rule.reads != "graph" or (rule.bad and rule.good) for rule in rules)
