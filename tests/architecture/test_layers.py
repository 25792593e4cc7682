"""Imports point down the layers, and heavy packages stay where they belong."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "headrace"

# A module imports only from the rows below its own in the table of docs/architecture.md. A package
# that stands as one name is one unit.
TABLE = Path(__file__).parents[2] / "docs" / "architecture.md"


def rows_of_the_table() -> dict[str, int]:
    """name -> row, from lines such as `     3  data.order  data.plan`, indented by four or more."""
    rows: dict[str, int] = {}
    row = None
    for line in (
        TABLE.read_text().partition("A module imports only from lower rows")[2].splitlines()
    ):
        if not line.startswith("    "):
            if rows:
                break
            continue
        first, *others = line.split()
        if first.isdigit():
            row = int(first)
        else:
            others.insert(0, first)
        assert row is not None
        rows |= dict.fromkeys(others, row)
    return rows


ROW_OF = rows_of_the_table()

# Without torch: what only knows numbers. (Prefixes of module names.)
NO_TORCH = (
    "errors progress shares pipeline.actions pipeline.partition pipeline.schedule"
    " pipeline.strategy pipeline.clock data.formats data.index data.order data.plan data.records"
    " data.orders data.permutation data.selection data.mixture"
    " data.columns data.opening"
    " data.reader data.uring data.threads data.preads data.cached data.libc data.backend"
    " data.read data.request data.files data.buffers data.memory data.checksums"
).split()
ONLY_IN = {
    "torch.distributed": "pipeline.mesh pipeline.transport runs.launch".split(),
    "typer": ["cli"],
    "rich": ["cli"],
    "matplotlib": ["plots"],
    "numba": (
        "data.preads data.cached data.libc data.checksums data.formats.frames data.formats.headers"
        " data.formats.finding data.formats.rows data.formats.decimals"
        " data.formats.svmlight_scan data.formats.svmlight_parse linear"
    ).split(),
}


def module_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """`pipeline.stage` for headrace/pipeline/stage.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def unit_of(name: str) -> str | None:
    """The entry of the table for a module: itself, or the package that stands for it."""
    while name and name not in ROW_OF:
        name = name.rpartition(".")[0]
    return name or None


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in the file, but not for types alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, prefixes: list[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


@pytest.mark.parametrize("path", module_files(), ids=name_of)
def test_imports_point_down_the_layers(path: Path) -> None:
    """A module imports only from lower rows, or from within its own unit."""
    importer = unit_of(name_of(path))
    imported = [name.removeprefix("headrace.") for name in imports_of(path) if "headrace." in name]

    if path.name == "__init__.py" and importer is None:
        assert not imported, f"{path} is the door of a package; it imports nothing"
        return
    assert importer is not None, f"{path} has no row in the table"
    for name in imported:
        unit = unit_of(name)
        assert unit is not None, f"{path} imports headrace.{name}, which has no row in the table"
        assert unit == importer or ROW_OF[unit] < ROW_OF[importer], f"{path} imports {unit}"


@pytest.mark.parametrize("path", module_files(), ids=name_of)
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    """torch stays out of what only knows numbers; typer, rich and the like have one home each."""
    name = name_of(path)
    for imported in imports_of(path):
        if within(imported, ["torch", "safetensors.torch"]):
            assert not within(name, NO_TORCH), f"{path} imports {imported}"
        for package, homes in ONLY_IN.items():
            if within(imported, [package]):
                assert within(name, homes), f"{path} imports {imported}"


def loaded_by(statement: str) -> set[str]:
    """The top-level packages in memory after a statement in a fresh interpreter."""
    code = f"{statement}; import sys; print(*sorted(n.partition('.')[0] for n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_headrace_loads_nothing_heavy() -> None:
    """`import headrace` leaves the seconds that torch and its like take to their first use."""
    assert not loaded_by("import headrace") & {"torch", "numba", "matplotlib", "numpy", "typer"}


def test_drawing_a_schedule_needs_no_torch() -> None:
    """A schedule and its clock are plain numbers."""
    assert "torch" not in loaded_by("import headrace.pipeline.clock, headrace.pipeline.strategy")
