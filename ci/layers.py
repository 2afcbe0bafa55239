"""The packages of posexport and their imports, as a Mermaid graph that docs/architecture.md shows.

An arrow points from a package to one that it imports. An import that a chain of other arrows implies has none of its
own. The modules of the lowest layer are one box.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
GROUND = "ground"


def numbered() -> str:
    """The layers of the package, from the ground up, as ``tests/repository/test_layers.py`` keeps them."""
    layers = load_module(ROOT / "tests" / "repository" / "test_layers.py")
    lines, level = [], 0
    for kind, names in (("Core", layers.CORE), ("Extensions", layers.EXTENSIONS), ("Surfaces", layers.SURFACES)):
        lines += [f"{kind}:", ""]
        for each in names:
            level += 1
            lines.append(f"{level}. {', '.join(f'`{name}`' for name in sorted(each))}")
        lines.append("")
    return "\n".join(lines[:-1])


def mermaid() -> str:
    """The graph, the users' end on top."""
    test_layers = load_module(ROOT / "tests" / "repository" / "test_layers.py")
    modules = ", ".join(sorted(test_layers.LAYERS[0]))
    imports = package_imports(test_layers)
    lines = ["```mermaid", "flowchart TD", f'    {GROUND}["{modules}"]']
    for package, targets in reduced(imports).items():
        lines += [f"    {package} --> {target}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def package_imports(test_layers: ModuleType) -> dict[str, set[str]]:
    """Every package with those that it imports, but for types alone; from the top layer down."""
    imports: dict[str, set[str]] = {}
    for path in test_layers.parts():
        package = path.relative_to(test_layers.ROOT).parts[0].removesuffix(".py")
        # without the exceptions that go up
        level = test_layers.LEVEL[package]
        below = {name for name in test_layers.imported(path) if test_layers.LEVEL.get(name, level + 1) <= level}
        imports.setdefault(package, set()).update(below - {package})
    ground = test_layers.LAYERS[0]
    above = sorted(set(imports) - ground, key=lambda package: (-test_layers.LEVEL[package], package))
    return {package: {GROUND if name in ground else name for name in imports[package]} for package in above}


def reduced(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction: what a package reaches through another of its imports is left out."""

    def reached(package: str, path: tuple[str, ...] = ()) -> set[str]:
        if package in path:
            raise ValueError(f"packages import each other: {' -> '.join([*path, package])}")
        targets = imports.get(package, set())
        return targets.union(*(reached(target, (*path, package)) for target in targets))

    return {
        package: targets - set().union(*(reached(target, (package,)) for target in targets))
        for package, targets in imports.items()
    }


def load_module(path: Path) -> ModuleType:
    """Import a Python file that is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(mermaid())
