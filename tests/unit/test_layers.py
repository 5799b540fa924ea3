"""The house: who may import whom. Lazy imports count, those for type checkers alone do not."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each room may import from rooms before it and from its own; rooms of one line do not know each other.
ORDER = (
    ("psdrl.errors", "psdrl.version", "psdrl.console"),
    ("psdrl.config",),
    ("psdrl.flags",),
    ("psdrl.envs", "psdrl.runtime", "psdrl.kernels", "psdrl._C"),
    ("psdrl.replay",),
    ("psdrl.agents",),
    ("psdrl.cost",),
    ("psdrl.run",),
    ("psdrl.api",),
    ("psdrl",),  # psdrl/__init__.py: what `from psdrl import ...` offers
    ("psdrl.doctor", "psdrl.catalogue", "psdrl.report"),
    ("psdrl.view", "psdrl.arguments"),
    ("psdrl.sweep",),
    ("psdrl.cli",),
    ("psdrl.experiments",),
    ("psdrl.train", "psdrl.evaluate"),  # python -m psdrl.train
)
LAYERS = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
SOURCES = [p for p in (ROOT / "psdrl").rglob("*.py") if "kernels" not in p.relative_to(ROOT / "psdrl").parts[0]]
SOURCES += list((ROOT / "kernels").rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("psdrl", *parts) if parts[0] == "kernels" else parts
    return ".".join(parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """psdrl.cost.__main__ is a command line like psdrl.train, though it lies with the cost model."""
    if module.endswith(".__main__"):
        return "psdrl.train"
    return ".".join(module.split(".")[:2])


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def all_imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in the file; ruff sees to it that no import is relative."""

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if node.module == "psdrl" or is_module(name) else node.module)
        for child in ast.iter_child_nodes(node):
            walk(child)

    found: set[str] = set()
    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found


def imported(path: Path) -> set[str]:
    """The modules of psdrl among them."""
    return {name for name in all_imported(path) if name.split(".")[0] == "psdrl"}


def room_imported(name: str) -> str:
    """`from psdrl import configure` is of psdrl itself."""
    room = room_of(name)
    return room if room in LAYERS else "psdrl"


def test_every_room_has_its_place() -> None:
    assert {room_of(module_of(path)) for path in SOURCES} <= set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_of(path))
def test_imports_go_down(path: Path) -> None:
    room = room_of(module_of(path))
    for name in imported(path):
        other = room_imported(name)
        if other in (room, "psdrl._C"):
            continue
        assert LAYERS[other] < LAYERS[room], f"{module_of(path)} imports {name}"


def test_agents_do_not_know_each_other() -> None:
    """An agent's folder imports no other agent's; only the registry knows them all."""
    folders = [p.name for p in (ROOT / "psdrl" / "agents").iterdir() if (p / "__init__.py").exists()]
    for folder in folders:
        for path in (ROOT / "psdrl" / "agents" / folder).rglob("*.py"):
            for name in imported(path):
                others = [f for f in folders if f != folder and name.startswith(f"psdrl.agents.{f}")]
                assert not others, f"{module_of(path)} imports {name}"


KNOWN = ("psdrl.agents", "psdrl.agents.interface", "psdrl.agents.registry")


@pytest.mark.parametrize("room", ["run", "cost", "doctor", "runtime"])
def test_agents_are_known_by_their_interface_only(room: str) -> None:
    """Nor does a run ask which kernels serve: its agent says so."""
    for path in (ROOT / "psdrl" / room).glob("*.py"):
        for name in imported(path):
            assert room != "run" or not name.startswith("psdrl.kernels"), f"{module_of(path)} imports {name}"
            if name.startswith("psdrl.agents"):
                assert name in KNOWN, f"{module_of(path)} imports {name}"


@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_nobody_imports_a_test(folder: str) -> None:
    """What tests share lies in modules that are none; else one test's change is another's failure."""
    paths = list((ROOT / folder).rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        for name in all_imported(path):
            assert not any(part.startswith("test_") for part in name.split(".")), f"{module_of(path)} imports {name}"


def test_the_program_does_without_tests_and_benchmarks_without_tests() -> None:
    for path in SOURCES:
        assert not {"tests", "bench"} & {name.split(".")[0] for name in all_imported(path)}, module_of(path)
    for path in (ROOT / "bench").rglob("*.py"):
        assert "tests" not in {name.split(".")[0] for name in all_imported(path)}, module_of(path)
