"""Library cuDNN on one device: a plan for every call, made before the first step."""

from dataclasses import dataclass
from typing import Any

from millrace.executor.cuda.binding import bound_library
from millrace.executor.cuda.calls import LibraryCall, Operand
from millrace.executor.cuda.wording import described
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cudnn.cudnn_graphs import deselected_notes, graph_of
from millrace.executor.gpu.cudnn.limits import refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call that the library is ready to carry out at any addresses that are aligned.

    Parameters
    ----------
    graph
        The front end's graph, with a plan.
    description
        The call in words, for errors.
    workspace_bytes
        Scratch that it takes.
    """

    graph: Any
    description: str
    workspace_bytes: int


class CudnnLibrary:
    """cuDNN on the device that is current when this is made.

    Parameters
    ----------
    cudnn
        The front end, whose library has been found.
    deterministic
        Take only what adds up in one order, at the price of scratch and of the fastest kernels.

    Attributes
    ----------
    version
        Version of the library: 92600 is 9.26.0.
    refused
        Reason why there is no plan, by call without addresses.

    Raises
    ------
    ExecutorError
        The library finds no device.
    """

    def __init__(self, cudnn: Any, *, deterministic: bool = False) -> None:
        self._cudnn, self._deterministic = cudnn, deterministic
        self.version = int(cudnn.backend_version())
        self.refused: dict[LibraryCall, str] = {}
        try:
            self._handle: int | None = cudnn.create_handle()
        except RuntimeError as error:
            raise ExecutorError(f"cuDNN finds no device: {error}") from error

    def plan(self, call: LibraryCall, workspace_bytes: int) -> PlannedCall | None:
        """Plan for a call, or None where the library has none: `refused` says why.

        Parameters
        ----------
        call
            The call; addresses do not matter.
        workspace_bytes
            Scratch that it may use.
        """
        assert self._handle is not None, "the library is closed"
        call = bound_library(call, lambda operand: Operand("address"))
        cudnn, deterministic = self._cudnn, self._deterministic
        if (reason := refusal(call, self.version)) is not None:
            self.refused[call] = reason
            return None
        try:
            graph = graph_of(cudnn, call, deterministic=deterministic, handle=self._handle)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_workspace_greater_than(workspace_bytes)
            if notes := deselected_notes(cudnn, call, deterministic=deterministic):
                graph.deselect_numeric_notes(notes)
            graph.check_support()
            graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
            needed = int(graph.get_workspace_size())
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            self.refused[call] = str(error)
            return None
        if needed > workspace_bytes:
            self.refused[call] = f"{needed} bytes of scratch, and {workspace_bytes} are allowed"
            return None
        return PlannedCall(graph=graph, description=described(call), workspace_bytes=needed)

    def run(
        self, planned: PlannedCall, addresses: tuple[int, ...], workspace: int, stream: int
    ) -> None:
        """Put a planned call on a stream.

        Parameters
        ----------
        planned
            The call as `plan` returned it.
        addresses
            Addresses of the call's `tensors`.
        workspace
            Address of the scratch that it takes.
        stream
            The stream.

        Raises
        ------
        ExecutorError
            The library refuses, or the device has failed.
        """
        assert self._handle is not None, "the library is closed"
        try:
            self._cudnn.set_stream(handle=self._handle, stream=stream)
            planned.graph.execute(dict(enumerate(addresses, 1)), workspace, handle=self._handle)
        except (self._cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            raise ExecutorError(f"cuDNN failed in {planned.description}: {error}") from error

    def close(self) -> None:
        """Give everything back; what was planned cannot run any more."""
        if self._handle is not None:
            self._cudnn.destroy_handle(self._handle)
            self._handle = None
