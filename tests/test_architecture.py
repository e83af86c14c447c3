"""The packages point one way, and what must be light is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_NOT_IMPORT = {
    "observer_core": {"observer_serving", "observer_pipeline", "dagster", "mlflow", "fastapi", "uvicorn", "grpc"},
    "observer_serving": {"observer_pipeline", "dagster", "mlflow", "torch", "transformers"},
    "observer_pipeline": set(),
}


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", MAY_NOT_IMPORT)
def test_arrows_point_one_way(package: str):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(f.relative_to(ROOT)): bad for f in files if (bad := imports(f) & MAY_NOT_IMPORT[package])}
    assert wrong == {}


@pytest.mark.parametrize(
    "module",
    [
        "observer_core",
        "observer_core.decision.jev.scorer",
        "observer_serving",
        "observer_pipeline.cli",
    ],
)
def test_light_modules_pull_in_nothing_heavy(module: str):
    code = f"import sys, {module}; print([m for m in ('dagster', 'mlflow', 'torch', 'transformers', 'google.adk') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_command_line_starts_without_arrays():
    """Processes that grade rewards import it again as they start; typing `observer --help` should not take a second."""
    code = "import sys, observer_pipeline.cli; print([m for m in ('numpy', 'pyarrow', 'pandas') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_service_starts_without_what_it_may_never_need():
    """Clients of back ends and the Parquet library take as long to import as half of the rest."""
    code = "import sys, observer_serving.app; print([m for m in ('httpx', 'pyarrow', 'pandas', 'rich') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_dagster_modules_do_not_postpone_annotations():
    """It breaks assets that take a Config (dagster issue 14571)."""
    files = [*(ROOT / "observer_pipeline").rglob("*.py")]
    dagster_files = [f for f in files if "dagster" in imports(f)]
    assert [str(f) for f in dagster_files if "__future__" in imports(f)] == []


def test_test_files_have_names_of_their_own():
    """pytest imports them by base name: of two that share one, only the first would run."""
    names = [f.name for f in (ROOT / "tests").rglob("test_*.py")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_modules_stay_small():
    sizes = {
        str(f.relative_to(ROOT)): n
        for package in MAY_NOT_IMPORT
        for f in (ROOT / package).rglob("*.py")
        if (n := len(f.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert sizes == {}
