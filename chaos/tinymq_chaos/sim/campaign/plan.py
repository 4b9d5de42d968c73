"""The plan of a run: what it does. `draws.py` fills in what a plan leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq_chaos.sim.world.world import LINK_S

SECONDS = 30.0  # virtual, of a whole run


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. The seed decides whatever the plan leaves open."""

    seed: int
    nodes: int = 3
    seconds: float = SECONDS
    workloads: tuple[str, ...] = ()  # (): the seed chooses
    faults: tuple[str, ...] | None = None  # names of faults; None: the seed chooses, (): none
    segment_bytes: int | None = None  # None: the seed chooses
    latency_s: float = LINK_S[0]  # of every link, without faults
    pace: float | None = None  # factor for the pauses of workloads; None: the seed chooses
    registry: str = "replicated"  # or "memory", for one broker
    replicas: int | None = None  # of each partition; None: the seed chooses in a plain run, else at most three
    gap_s: float | None = None  # between two episodes of faults, on average; None: the seed chooses in a plain run
    client_bytes_per_s: int | None = None  # each client's quota; 0: none; None: the seed chooses in a plain run
    threaded: float | None = None  # share of synchronous clients; None: the seed chooses in a plain run, else none
    acts: tuple[int, ...] | None = None  # the numbers of the faults that begin; None: all of the schedule

    @property
    def is_plain(self) -> bool:
        """Return whether nothing narrows the load and the faults, as in `make sim` without options."""
        return not self.workloads and self.faults is None

    @property
    def command(self) -> str:
        """Return the command that replays the run."""
        words = [f"make sim SEED={self.seed} BROKERS={self.nodes}"]
        words += [f"RUN_S={self.seconds:g}"] if self.seconds != SECONDS else []
        words += [f"WORKLOADS={','.join(self.workloads)}"] if self.workloads else []
        words += [f"FAULTS={','.join(self.faults) or 'none'}"] if self.faults is not None else []
        words += [f"ACTS={','.join(map(str, self.acts)) or 'none'}"] if self.acts is not None else []
        words += [f"REPLICAS={self.replicas}"] if self.replicas is not None else []
        words += [f"SEGMENT_BYTES={self.segment_bytes}"] if self.segment_bytes is not None else []
        words += [f"LATENCY_S={self.latency_s:g}"] if self.latency_s != LINK_S[0] else []
        words += [f"REGISTRY={self.registry}"] if self.registry != "replicated" else []
        words += [f"PACE={self.pace:g}"] if self.pace is not None else []
        words += [f"GAP_S={self.gap_s:g}"] if self.gap_s is not None else []
        words += [f"THREADED={self.threaded:g}"] if self.threaded is not None else []
        words += [f"QUOTA={self.client_bytes_per_s}"] if self.client_bytes_per_s is not None else []
        return " ".join(words)
