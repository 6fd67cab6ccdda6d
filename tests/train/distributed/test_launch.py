"""How processes start, agree, and tell what keeps them from it; torchrun's attempts apart."""

from __future__ import annotations

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
    attempt = launching.find_attempt(1.0, tmp_path)
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
        launching.find_attempt(0.5, tmp_path)


def test_attempts_do_not_see_one_another(monkeypatch, tmp_path):
    """In one store each attempt, however many restarts came before, has keys of its own, and finds
    the run of the launch."""
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", **place, **agent}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launching, "started_by_torchrun", lambda: True)
    launches, runs = set(), []
    for restarts in range(3):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        attempt = launching.find_attempt(5.0, tmp_path)
        assert attempt.earlier_run == (runs[-1] if runs else None)
        assert not attempt.store.check(["address"])
        attempt.store.set("address", str(restarts))
        assert attempt.store.get("address") == str(restarts).encode()
        launches.add(attempt.launch)
        runs.append(run_of(tmp_path, attempt.launch))
    assert len(launches) == 1


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
        launching.check_agreement(Three(), {"lr": 0.1, "seed": 0})
    answers[2]["lr"] = "0.1"
    with pytest.raises(RunError, match=r"differ in seed\n  process 0 0\n  process 1 1"):
        launching.check_agreement(Three(), {"lr": 0.1, "seed": 0})
    answers[1]["seed"] = "0"
    launching.check_agreement(Three(), {"lr": 0.1, "seed": 0})


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


@pytest.mark.parametrize("copies", [{}, {"devices": 2, "shard": True}])
def test_averages_of_no_copies(copies):
    """Weights are averaged among copies of a model."""
    with pytest.raises(InputError, match="--average-every averages copies of a model: "):
        launching.check_copies(TextConfig(average_every=4, **copies))
