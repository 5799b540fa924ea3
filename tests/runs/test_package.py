"""The package as installed: `kernels/` is psdrl.kernels and nothing else, and nothing optional is needed to import."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import BLOCKER

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("psdrl", "kernels", "bench", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "psdrl/kernels" not in str(path.relative_to(ROOT))
]


def outside(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a directory that is not the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def test_no_source_imports_kernels_as_a_top_level_package() -> None:
    assert len(SOURCES) > 30
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "kernels", f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_kernels_is_installed_only_within_psdrl(tmp_path: Path) -> None:
    code = """
import importlib.util, psdrl.kernels, psdrl.agents.psdrl.lookahead
assert importlib.util.find_spec("kernels") is None, "a top-level package called kernels is installed"
try:
    import kernels
except ModuleNotFoundError:
    print("only psdrl.kernels")
"""
    done = outside(code, tmp_path)
    assert done.stdout.strip() == "only psdrl.kernels", done.stderr


def test_works_without_triton_and_envpool(tmp_path: Path) -> None:
    """Import, an Atari environment by another backend, a few steps and an update."""
    code = (
        f'BLOCKED = {{"triton", "envpool"}}\n{BLOCKER}'
        + """
import importlib.util
assert importlib.util.find_spec("envpool") is None and importlib.util.find_spec("triton") is None
import psdrl
config = psdrl.configure(
    game="Pong", preset="debug", device="cpu", steps=30, eval_every=0, atari={"max_steps": 12},
    policy={"update_every": (10,)},
)
env = psdrl.make_env(config)
agent = psdrl.Agent(config, env.spec)
agent.train(env)
print(env.spec.backend, agent.step, agent.updates)
"""
    )
    done = outside(code, tmp_path)
    assert done.stdout.split() == ["ale", "30", "1"], done.stdout + done.stderr


def test_missing_backend_is_named(tmp_path: Path) -> None:
    code = (
        f'BLOCKED = {{"triton", "envpool"}}\n{BLOCKER}'
        + """
import sys
from psdrl import cli
sys.argv = ["psdrl.train", "--game", "Pong", "--preset", "debug", "--env-backend", "envpool", "--logdir", "run"]
cli.main_train()
"""
    )
    done = outside(code, tmp_path)
    assert done.returncode == 2, done.stderr
    assert "pip install envpool" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["psdrl", "psdrl.kernels"])
def test_import_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    """Triton, EnvPool, MinAtar and TensorBoard are imported when used, not before."""
    code = f"""
import sys, {module}
print(sorted({{"triton", "envpool", "minatar", "tensorboard", "imageio"}} & set(sys.modules)))
"""
    done = outside(code, tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
