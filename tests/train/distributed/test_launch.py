"""How processes start, meet, agree, and tell what keeps them from it; torchrun's attempts apart."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from lightning_fabric import Fabric

from elman.errors import InputError, RunError
from elman.train.distributed import launch as launching
from elman.train.distributed.launch import (
    check_place,
    check_rendezvous,
    detect_lost_process,
    vote,
    with_processes,
)
from elman.train.loop.config import Config
from elman.train.run.folder import create_run
from elman.train.tasks.text.config import TextConfig

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)


@pytest.fixture
def store():
    """A store as torchrun's: one for all attempts."""
    return torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=100)
    )


def joined(store, world: int) -> list:
    """The parts of a store that so many processes find."""

    def part(rank: int):
        own = torch.distributed.TCPStore(
            "127.0.0.1", store.port, wait_for_workers=False, timeout=timedelta(seconds=100)
        )
        return launching.attempt_store(own, rank, world, time.monotonic() + 20)

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(part, range(world)))


def test_attempts_do_not_see_one_another(store):
    """However many processes each has, in whatever order they come."""
    for attempt, world in enumerate((2, 3, 3, 2)):
        parts = joined(store, world)
        assert not any(part.check(["address"]) for part in parts)
        parts[-1].set("address", str(attempt))
        assert [part.get("address") for part in parts] == [str(attempt).encode()] * world


def test_one_that_does_not_come(store):
    """Those of an earlier attempt are not taken for it."""
    joined(store, 2)
    with pytest.raises(torch.distributed.DistError, match="1 of 2 processes came"):
        launching.attempt_store(store, 0, 2, time.monotonic() + 0.2)


def run_of(out, launch: str):
    """A run folder that an attempt of a launch has begun."""
    run = create_run(out, "text")
    run.write("config", {})
    launching.Attempt(launch).mark_run(run.path)
    return run.path


def test_the_run_of_a_launch(tmp_path):
    """The last one; other launches' runs are none of theirs."""
    first, second = run_of(tmp_path, "a"), run_of(tmp_path, "b/../c")
    assert launching.run_of_launch(tmp_path, "a") == first
    assert launching.run_of_launch(tmp_path, "b/../c") == second
    assert run_of(tmp_path, "a") == launching.run_of_launch(tmp_path, "a")
    assert launching.run_of_launch(tmp_path, "d") is None
    assert launching.run_of_launch(None, "a") is None


def test_without_torchrun_nothing_is_noted(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    attempt = launching.meet(1.0, tmp_path)
    attempt.mark_run(tmp_path)
    assert attempt == launching.Attempt()
    assert not list(tmp_path.iterdir())


def test_processes_that_do_not_meet(monkeypatch, tmp_path):
    """One line, within the time that is stated."""
    monkeypatch.setattr(launching, "started_by_torchrun", lambda: True)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(RunError, match="the processes of the run have not found one another"):
        launching.meet(0.5, tmp_path)


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_a_torchrun_that_is_gone(monkeypatch, tmp_path, rank):
    """Nobody listens at its store any more: torch is not asked, whose attempts to connect take
    twice the time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(launching, "started_by_torchrun", lambda: True)
    monkeypatch.setattr(launching, "rendezvous", lambda *_, **__: pytest.fail("torch was asked"))
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {"RANK": str(rank), "WORLD_SIZE": "2", **place, **agent}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RunError, match=rf"not found one another(.|\n)*no store at 127.0.0.1:{port}"
    ):
        launching.meet(0.2, tmp_path)


def test_all_waits_of_a_meeting_have_one_end(monkeypatch, tmp_path):
    """What one wait took, the next one has not: the store's own waits too."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    given: list[float] = []

    class Slow:
        def set_timeout(self, timeout):
            given.append(timeout.total_seconds())

    def rendezvous(place, timeout):
        given.append(timeout.total_seconds())
        clock[0] += 3.0
        return iter([(Slow(), 1, 2)])

    def attempt_store(store, rank, world, deadline):
        given.append(deadline - clock[0])
        raise torch.distributed.DistStoreError("1 of 2 processes came")

    monkeypatch.setattr(launching, "started_by_torchrun", lambda: True)
    monkeypatch.setattr(
        launching, "await_store", lambda deadline: clock.__setitem__(0, clock[0] + 1.0)
    )
    monkeypatch.setattr(launching, "rendezvous", rendezvous)
    monkeypatch.setattr(launching, "attempt_store", attempt_store)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match="not found one another"):
        launching.meet(10.0, tmp_path)
    assert given == [9.0, 6.0, 6.0]


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", "10.77.0.2"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_machines_whose_names_lead_to_themselves(address, nodes):
    """Gloo takes their addresses; it has to be told the interface."""
    named = nodes > 1 and address != "10.77.0.2"
    wanted = r"GLOO_SOCKET_IFNAME=" if named else r"start all 2 within --timeout 5 s"
    with pytest.raises(RunError, match=wanted), check_rendezvous(2, 5.0, nodes):
        raise RuntimeError(f"Gloo connectFullMesh failed: refused, remote=[{address}]:39824$1")


def test_what_processes_agree_on(monkeypatch):
    """Several wishes are one message; each is anybody's; alone nothing is sent."""
    alone = Fabric(accelerator="cpu", devices=1)
    assert vote(alone, True, False) == [True, False]
    sent = []

    def all_reduce(votes):  # another process wishes the second thing
        sent.append(votes.clone())
        votes += torch.tensor([0.0, 1.0, 0.0])

    class Two:
        """One of two processes."""

        world_size, device = 2, torch.device("cpu")

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert vote(Two(), True, False, False) == [True, True, False]
    assert len(sent) == 1


def test_configurations_that_differ(monkeypatch):
    """The first fact that is not the same everywhere is named, with both values."""
    answers = [{"lr": "0.1", "seed": "0"}, {"lr": "0.1", "seed": "1"}, {"lr": "0.2", "seed": "0"}]

    class Three:
        """One of three processes."""

        world_size = 3

    def all_gather_object(into, mine):
        assert mine == answers[0]
        into[:] = answers

    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    told = r"the processes differ in lr\n  process 0 0.1\n  process 2 0.2"
    with pytest.raises(RunError, match=told):
        launching.check_same_everywhere(Three(), {"lr": 0.1, "seed": 0})
    answers[2]["lr"] = "0.1"
    with pytest.raises(RunError, match=r"differ in seed\n  process 0 0\n  process 1 1"):
        launching.check_same_everywhere(Three(), {"lr": 0.1, "seed": 0})
    answers[1]["seed"] = "0"
    launching.check_same_everywhere(Three(), {"lr": 0.1, "seed": 0})


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("MASTER_PORT", "hello", "a number from 0 to 65535"),
        ("MASTER_PORT", "70000", "a number from 0 to 65535"),
        ("NODE_RANK", "2", "a number from 0 to 1"),
        ("NODE_RANK", "-1", "a number from 0 to 1"),
    ],
)
def test_a_place_that_there_is_not(monkeypatch, name, value, rule):
    """It is said at once, not after the time to wait for others; a single machine has no place."""
    monkeypatch.setenv(name, value)
    check_place(Config(nodes=1))
    with pytest.raises(InputError, match=f"{name} must be {rule}\n  said +{name}={value}"):
        check_place(Config(nodes=2))


def test_other_errors_pass():
    """Only a lost connection is told in words."""
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5] Read error\nmore")
    with (
        pytest.raises(RunError, match=r"said  \[/pytorch.*Read error\n  hint  elman resume"),
        detect_lost_process("elman resume FOLDER"),
    ):
        raise lost
    with pytest.raises(RuntimeError, match="out of memory"), detect_lost_process(""):
        raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    "asked, told",
    [
        ({"devices": 4}, "torchrun has started other processes than asked for"),
        ({"batch": 7}, "batch 7 does not divide among 2 devices"),
    ],
)
def test_other_processes_than_asked_for(monkeypatch, asked, told):
    """torchrun and --devices must not contradict one another; a batch must divide."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "any")
    assert with_processes(TextConfig()).devices == 2
    with pytest.raises(InputError, match=told):
        with_processes(TextConfig(**asked))
