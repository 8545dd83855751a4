"""A campaign on a real Ray cluster of two nodes: the same as here, also when a node is lost."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from bandscope.allocator.errors import ConfigError, DeviceError
from bandscope.fuzz.campaign import Settings, run_campaign
from bandscope.fuzz.fleet import Processes, RayCluster
from tests.fuzz.test_campaign import told

SETTINGS = Settings(7, "serving", cases=40)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each on this machine."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bandscope[ray]'")
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    options = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes.add_node(**options)
    nodes.second = nodes.add_node(**options)
    yield nodes
    nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_gives_the_same_campaign(cluster: Any) -> None:
    """Digest, coverage and corpus equal those of this process."""
    here = run_campaign(SETTINGS)
    with RayCluster(cluster.address) as fleet:
        assert fleet.workers == 2
        there = run_campaign(SETTINGS, fleet=fleet)
    assert told(here) == told(there)


@pytest.mark.slow
def test_a_lost_node_costs_no_case(cluster: Any) -> None:
    """In the middle of a round one of the nodes goes away."""
    here = run_campaign(SETTINGS)

    def lose(report: Any) -> None:
        if report.cases == 5:
            cluster.remove_node(cluster.second)

    with RayCluster(cluster.address) as fleet:
        there = run_campaign(SETTINGS, fleet=fleet, progress=lose)
    assert told(here) == told(there)


def test_without_ray_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("no ray")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'bandscope\[ray\]'"):
        RayCluster("auto")


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and before Ray is asked, which would end the process after minutes."""
    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    with pytest.raises(DeviceError, match="cannot be reached"):
        RayCluster("127.0.0.1:1")


def test_no_workers() -> None:
    with pytest.raises(ConfigError, match="give 1 or more"):
        Processes(0)
