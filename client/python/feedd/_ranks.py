"""_ranks.py - which rank of how many this process is, and who says so."""

from __future__ import annotations

import os
import sys
from typing import Mapping, NamedTuple, Optional


class Ranks(NamedTuple):
    rank: int
    world_size: int
    source: str  # for stats()


# Each launcher by the variables that it alone sets. An sbatch body has SLURM_PROCID 0 without being a step.
_LAUNCHERS = (
    ("RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", ("LOCAL_RANK",)),  # torchrun, Ray
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ()),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ()),
)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(
            f"{name} is {environment[name]!r}: it has to be a number; or pass rank and world_size"
        ) from None


def find(rank: Optional[int], world_size: Optional[int], environment: Mapping[str, str] = os.environ) -> Ranks:
    """The arguments, else torch.distributed, else the launcher's environment, else 0 of 1. Raises ValueError."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size go together: pass both, or neither")
    if rank is not None and world_size is not None:
        return _checked(Ranks(int(rank), int(world_size), "arguments"))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for source, rank_name, size_name, others in _LAUNCHERS:
        if all(name in environment for name in (rank_name, size_name, *others)):
            return _checked(Ranks(_number(environment, rank_name), _number(environment, size_name), source))
    return Ranks(0, 1, "alone")


def _checked(ranks: Ranks) -> Ranks:
    if not 0 <= ranks.rank < ranks.world_size:
        raise ValueError(f"rank {ranks.rank} of {ranks.world_size} ({ranks.source}): ranks are 0 to world_size - 1")
    return ranks
