"""Foreign packages of our names are noticed and named; what is beside us does no harm."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, folder: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **variables}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_foreign_package_in_the_way_is_named_in_one_sentence(tmp_path):
    foreign = tmp_path / "models"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); from millrace.cli import main; "
        f"sys.argv = ['millrace', 'models']; main()"
    )
    done = python(code, tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"the package `models` at {foreign} hides Millrace's own at {ROOT}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_foreign_module_file_is_named_too(tmp_path):
    (tmp_path / "planner.py").write_text("")
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); "
        f"from millrace.guard import check_packages; check_packages()"
    )
    done = python(code, tmp_path)
    assert f"the package `planner` at {tmp_path / 'planner.py'} hides" in done.stderr


def test_our_own_packages_pass():
    done = python("from millrace.guard import check_packages; check_packages()", ROOT)
    assert done.returncode == 0, done.stderr
