"""Before all tests: one thread for matrix products, and one name for all that is ours.

Libraries take as many threads as there are cores, which wait for one another by turning round; so
two test processes on two cores spend most of their time waiting. This comes before NumPy's import.

The folders at the top of the repository are importable by their own names where it is the current
directory, as it is here and nowhere else: who asks for one of them is told.
"""

import gc
import os
import sys

import pytest
from hypothesis import settings

from tests.durations import mark_fast, start_recording
from tests.extras import MissingExtras

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Graphs are many small objects that live for a test: a collector that looks through them as often
# as it does by itself takes a fifth of the time.
gc.set_threshold(100_000, 20, 100)


class OneName:
    """A finder that knows which names are none of ours."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in ("models", "planner", "simulator", "executor"):
            raise ModuleNotFoundError(f"`{name}` is `millrace.{name}` where it is installed")


settings.register_profile("many", max_examples=1000, deadline=None)
sys.meta_path.insert(0, OneName)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extras", action="store_true", help="run what the last run skipped for want of an extra"
    )


def pytest_configure(config: pytest.Config) -> None:
    start_recording(config)
    config.pluginmanager.register(MissingExtras(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_fast(items)
