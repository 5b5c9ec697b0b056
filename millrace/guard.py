"""The guard: Millrace's flat packages are the ones that get imported, or one sentence says why not.

Import names are the folder names, and `models` or `planner` are names that other people use too: a
folder in the current directory, on `PYTHONPATH` or in site-packages may hide ours.
"""

import base64
import hashlib
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("models", "planner", "simulator", "executor")


class HiddenPackageError(ImportError):
    """A foreign package of the same name hides one of Millrace's (exit code 2)."""


def check_packages() -> None:
    """Do nothing where Millrace's own packages are the ones that get imported.

    Raises
    ------
    HiddenPackageError
        Names the package, the path in the way, the path that was expected, and the fix.
    """
    root = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        expected = root / name
        found = _folder(find_spec(name))
        if found != expected:
            raise HiddenPackageError(
                f"the package `{name}` at {found or 'nowhere'} hides Millrace's own at {expected}: "
                f"rename or remove it, or take its folder off PYTHONPATH and sys.path "
                f"(`python -P -m millrace` leaves out the current directory)"
            )
        if _was_overwritten(name, expected):
            raise HiddenPackageError(
                f"{expected / '__init__.py'} is not Millrace's: another distribution installed a "
                f"package `{name}` over it; install Millrace in an environment of its own"
            )


def _folder(spec: ModuleSpec | None) -> Path | None:
    """Folder of a found package or module."""
    if spec is None:
        return None
    if spec.origin:
        origin = Path(spec.origin).resolve()
        return origin.parent if origin.name == "__init__.py" else origin
    places = list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None


def _was_overwritten(name: str, folder: Path) -> bool:
    """Whether the package's `__init__.py` differs from what the wheel brought."""
    try:
        files = metadata.distribution("millrace").files or []
    except metadata.PackageNotFoundError:
        return False
    for file in files:
        if file.as_posix() == f"{name}/__init__.py" and file.hash is not None:
            if Path(str(file.locate())).resolve().parent != folder:
                return False
            digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
            return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value
    return False
