"""Findings as SARIF 2.1.0, which code hosts and editors show.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from typing import Any

from posexport.inspect.audit.finding import Findings
from posexport.inspect.audit.registry import RULES
from posexport.version import VERSION

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(findings: Findings) -> str:
    """One run with all rules that ran, and a result for each finding."""
    rules = [_rule(code) for code in findings.rules]
    index = {code: number for number, code in enumerate(findings.rules)}
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": index[finding.code],
            "level": finding.severity,
            "message": {"text": f"{finding.message}. {finding.remedy}"},
            "locations": [
                {
                    "physicalLocation": {"artifactLocation": {"uri": finding.file}},
                    "logicalLocations": [{"name": name, "kind": "object"} for name in finding.nodes],
                }
            ],
        }
        for finding in findings
    ]
    driver = {"name": "posexport", "version": VERSION, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.finds},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.remedy},
        "defaultConfiguration": {"level": rule.severity},
    }
