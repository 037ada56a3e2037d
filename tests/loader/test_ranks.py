"""Which rank a loader is, and who says so."""

import sys
import types

import numpy
import pytest
from feedd._ranks import find

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
STEP = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, "alone")),
        (TORCHRUN, (3, 8, "RANK and WORLD_SIZE")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (0, 1, "alone")),  # not a launcher's
        (MPI, (2, 4, "Open MPI")),
        (STEP, (5, 6, "Slurm")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, "alone")),  # the body of an sbatch script
        ({**STEP, **MPI}, (2, 4, "Open MPI")),
        ({**STEP, **MPI, **TORCHRUN}, (3, 8, "RANK and WORLD_SIZE")),
    ],
    ids=str,
)
def test_environments(environment, expected):
    assert find(None, None, environment) == expected
    assert find(1, 2, environment) == (1, 2, "arguments")


@pytest.mark.parametrize("change", [{"RANK": "eight"}, {"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}])
def test_environments_that_make_no_sense(change):
    with pytest.raises(ValueError, match="RANK|WORLD_SIZE"):
        find(None, None, {**TORCHRUN, **change})


@pytest.mark.parametrize("initialized", [False, True])
def test_torch_distributed(monkeypatch, initialized):
    module = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: initialized, get_rank=lambda: 6, get_world_size=lambda: 7
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    assert find(None, None, TORCHRUN)[:2] == ((6, 7) if initialized else (3, 8))


def test_in_a_loader(loaders, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    loader, everything = loaders(fields=["index"]), loaders(fields=["index"], rank=0, world_size=1)
    stats = loader.stats()
    assert (stats["rank"], stats["world_size"], stats["rank_source"]) == (1, 2, "RANK and WORLD_SIZE")
    assert len(loader) == 7
    order = numpy.concatenate([batch["index"] for batch in everything])
    for step, batch in enumerate(loader):
        assert batch["index"].tolist() == order[(2 * step + 1) * 64 :][:64].tolist()
    shared = loaders(share="broadcast", group="all")  # every member gets everything
    assert (shared.stats()["rank"], shared.stats()["world_size"]) == (0, 1)
