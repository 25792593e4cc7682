"""Every module says what it is, what it offers, and keeps no state of its own."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "headrace"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.stat().st_size)
MUTABLE_CALLS = {
    "list",
    "dict",
    "set",
    "bytearray",
    "deque",
    "defaultdict",
    "Counter",
    "OrderedDict",
}


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_first_line_is_a_sentence(path: Path) -> None:
    """The module's docstring opens with one sentence on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))

    assert docstring is not None
    first = docstring.splitlines()[0]
    assert first.endswith((".", ":")) and first[0].isupper() or first.startswith("io_uring")


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_names_offered_exist(path: Path) -> None:
    """`__all__` is in every module that defines something, and names what is there."""
    tree = ast.parse(path.read_text())
    defined = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    name = ".".join(("headrace", *path.relative_to(PACKAGE).with_suffix("").parts))
    if path.name == "__init__.py" or not defined:
        return

    module = importlib.import_module(name)

    missing = [public for public in module.__all__ if not hasattr(module, public)]
    unsaid = [
        node.name
        for node in defined
        if not node.name.startswith("_") and node.name not in module.__all__
    ]
    assert (missing, unsaid) == ([], [])


def is_mutable(value: ast.expr | None) -> bool:
    """Whether an expression makes something that can be changed in place."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_CALLS
    return isinstance(
        value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    )


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_state_at_module_level(path: Path) -> None:
    """What stands at module level is constant; a table is typed as a Mapping (no setter)."""
    tree = ast.parse(path.read_text())
    faults = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            read_only = ast.unparse(node.annotation).startswith(("Mapping[", "Sequence["))
            if is_mutable(node.value) and not read_only:
                faults.append(node.lineno)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "__all__":
            if is_mutable(node.value):
                faults.append(node.lineno)
    faults += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global)]

    assert faults == []


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_examples_in_docstrings_run(path: Path) -> None:
    """Each `>>>` gives what stands below it."""
    if ">>>" not in path.read_text():
        return
    name = ".".join(("headrace", *path.relative_to(PACKAGE).with_suffix("").parts))

    failed, _ = doctest.testmod(importlib.import_module(name))

    assert failed == 0
