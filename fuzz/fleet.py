"""Where the cases of a campaign run: processes of this machine, or a Ray cluster.

Both give back results in the order of the cases, so a campaign cannot tell them apart. A worker that is
lost costs time, not cases: what it had is run again.
"""

from __future__ import annotations

import importlib
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Any

from bandscope.allocator.errors import ConfigError, DeviceError
from bandscope.fuzz.campaign import Case, CaseResult, Settings, run_case

CONNECT_SECONDS = 5.0


class Processes:
    """`workers` processes of this machine, as a fleet and a context."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"{workers} workers were asked for; give 1 or more")
        # Fresh interpreters: a fork would inherit threads and an imported torch.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, mp_context=context)
        self.workers = workers

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def __call__(self, settings: Settings, cases: Sequence[Case]) -> Iterator[CaseResult]:
        yield from self._pool.map(run_case, [settings] * len(cases), cases, chunksize=4)


def _check_answers(address: str) -> None:
    """`OSError` when nothing listens at HOST:PORT; Ray itself would try for minutes, then exit."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


class RayCluster:
    """A Ray cluster at `address` (`auto`: the one this machine belongs to; `local`: a new one here), as
    a fleet and a context. The nodes need this version of Bandscope. `ConfigError` without Ray,
    `DeviceError` when the cluster cannot be reached."""

    RETRIES = 3

    def __init__(self, address: str) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError(
                "--ray was given, but Ray is not installed; install it with "
                "`pip install 'bandscope[ray]'`"
            ) from error
        self._ray = ray
        try:
            _check_answers(address)
            ray.init(
                address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise DeviceError(
                f"the Ray cluster at {address!r} cannot be reached ({error}); start one with "
                "`ray start --head`, or give the address of one that runs"
            ) from error
        # A node that dies gives its cases back to the others.
        self._run = ray.remote(max_retries=self.RETRIES)(run_case)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *failure: object) -> None:
        self._ray.shutdown()

    @property
    def workers(self) -> int:
        """Cores of the whole cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def __call__(self, settings: Settings, cases: Sequence[Case]) -> Iterator[CaseResult]:
        for pending in [self._run.remote(settings, case) for case in cases]:
            yield self._ray.get(pending)
