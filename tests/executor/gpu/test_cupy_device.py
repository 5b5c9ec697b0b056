import ast
import inspect

import pytest

from executor.cuda.calls import Operand, read
from executor.errors import ExecutorError
from executor.gpu import cupy_device
from executor.gpu.cupy_device import CupyDevice
from executor.gpu.device import Device, address_of


def test_only_bound_operands_have_an_address() -> None:
    assert address_of(Operand("address", 0, 1 << 40)) == 1 << 40
    with pytest.raises(ExecutorError, match=r"read\(2\), which is not bound"):
        address_of(read(2))


def test_it_has_everything_that_a_device_has_with_the_same_parameters() -> None:
    for name, asked in inspect.getmembers(Device, inspect.isfunction):
        if name.startswith("_"):
            continue
        found = inspect.signature(getattr(CupyDevice, name))
        assert list(found.parameters) == list(inspect.signature(asked).parameters), name


def test_every_name_that_is_asked_of_cupy_is_there() -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    runtime = cupy.cuda.runtime
    asked = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(cupy_device)))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "runtime")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "_runtime")
        )
    }
    assert len(asked) > 15
    assert not [name for name in sorted(asked) if not hasattr(runtime, name)]
    assert cupy.cuda.compiler.CompileException
    assert {"begin_capture", "end_capture", "ptr"} <= set(dir(cupy.cuda.Stream)) | {"ptr"}
    assert {"launch", "upload"} <= set(dir(cupy.cuda.Graph))
    cupy.cuda.nvtx.RangePush("range")
    cupy.cuda.nvtx.RangePop()
