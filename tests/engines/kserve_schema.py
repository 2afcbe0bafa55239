"""Prints what in an InferenceService YAML is not in KServe's API; needs the packages kserve and kubernetes.

Usage: python kserve_schema.py FILE
"""

import re
import sys
from typing import Any

import kserve.models
import kubernetes.client.models
import yaml

SCALARS = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "ResourceQuantity": (str, int),
}
#: an integer or the name of a port, which the generated classes call an object
SCALARS["IntOrString"] = (str, int)


def wrong(value: Any, kind: str, at: str) -> list[str]:
    """Every place below ``at`` whose key or type the API does not have."""
    if inner := re.fullmatch(r"[lL]ist\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{at} is no list"]
        return [each for i, entry in enumerate(value) for each in wrong(entry, inner[1], f"{at}[{i}]")]
    if inner := re.fullmatch(r"[dD]ict[(\[]str, (.*)[)\]]", kind):
        if not isinstance(value, dict):
            return [f"{at} is no mapping"]
        return [each for key, entry in value.items() for each in wrong(entry, inner[1], f"{at}.{key}")]
    if kind in SCALARS:
        return [] if isinstance(value, SCALARS[kind]) else [f"{at} is no {kind}: {value!r}"]
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client.models, kind)
    if not isinstance(value, dict):
        return [f"{at} is no {kind}"]
    names = {api: own for own, api in model.attribute_map.items()}
    found = [f"{at} has no {key}" for key in value if key not in names]
    for key in value.keys() & names.keys():
        found += wrong(value[key], model.openapi_types[names[key]], f"{at}.{key}")
    given = {names[key]: value[key] for key in value.keys() & names.keys()}
    if hasattr(model, "model_fields"):  # of kubernetes: pydantic
        lacking = [own for own, field in model.model_fields.items() if field.is_required() and own not in given]
        return found + [f"{at} lacks {own}" for own in lacking]
    try:  # of kserve: setters that check
        model(**given)
    except ValueError as err:
        found.append(f"{at}: {err}")
    return found


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        problems = wrong(yaml.safe_load(file), "V1beta1InferenceService", "InferenceService")
    print("\n".join(problems))
    sys.exit(bool(problems))
