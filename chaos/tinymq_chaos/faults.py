"""The faults, as one table: a row for each kind, with what each tier does for it.

To add a fault, write its row here, and an action with the row's name in each tier for which the row has no reason:

    Simulated   sim/faults/       whole brokers and clients on virtual time
    Real        real/faults/      real processes, files and sockets
    weight      tests/raft/       hosts of replicas without partitions and clients (tests/raft/faults.py)

A string in the place of a tier says why the tier leaves the fault out. tests/chaos/test_fault_table.py holds that every
action has its row, and every row its actions. Actions and code of a single tier belong elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = float | str


class Family(StrEnum):
    """What a fault befalls."""

    PROCESS = "process"
    NETWORK = "network"
    DISK = "disk"
    FILES = "files"
    CLOCK = "clock"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Simulated:
    """How the simulator draws a fault."""

    weight: int  # how often, against the other faults; 0: only if it is asked for
    lasts_s: tuple[float, ...]  # virtual seconds; two bounds, or more than two values to choose from
    damages: bool = False  # takes synced bytes from a disk, or may do so
    brokers_min: int = 2  # of the cluster
    single: bool = False  # befalls a broker with its registry in memory, too, which cannot start a second time


@dataclass(frozen=True, slots=True)
class Real:
    """How the harness of real processes does a fault."""

    lasts_s: tuple[float, ...]  # real seconds to choose from; the first is the usual one
    parameters: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)  # values each; the first is the usual one
    needs: frozenset[str] = frozenset()  # of the cluster: "disks", "faketime"
    damages: bool = False  # takes synced bytes: on one broker at a time, which the nemesis names in parameter `broker`
    scars: bool = False  # the damage may stay undiscovered, so no other broker is damaged in the same run
    forgets: bool = False  # the brokers that the fault names may rightly report a loss
    strikes_on: bool = False  # strikes again and again, so it may cause elections as long as it lasts


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A row of the table. A string in the place of a tier is the reason why the tier leaves the fault out."""

    family: Family
    effect: str  # one line
    simulated: Simulated | str
    real: Real | str
    replicas: int | str  # the weight of the fault in the storms of tests/raft


# Values of parameters, which the actions compare with.
ANYBODY = 0.0  # parameter `broker`: the fault chooses one
LEADER, ANYONE = "leader", "anyone"  # parameter `who`
BROKERS, ALL, TO_CLIENTS = "brokers", "all", "clients"  # parameter `where`
WITH_MANY, WITH_FEW, WITH_ALL = "majority", "minority", "both"  # parameter `clients` of a partition
POWER, KILL = "power cut", "kill"  # parameter `then`
ANY_FILE = "any"  # parameter `file`

_ONE: Mapping[str, tuple[Value, ...]] = {"broker": (ANYBODY,)}
_ONE_LED: Mapping[str, tuple[Value, ...]] = {"broker": (ANYBODY,), "who": (LEADER, ANYONE)}
_WHERE = (BROKERS, ALL, TO_CLIENTS)
_DISKS = frozenset({"disks"})  # the cluster's disks obey the harness
_CUT_S = (4.0, 1.0, 8.0)

# Reasons that several rows share.
_TCP = "proxies speak TCP: a stream loses, repeats and reorders nothing"
_MEMORY = "the simulated network has messages, not streams of bytes"
_PAIRS = "one_way with `of` one"
_LOGS = "tests/raft checks one sequence of entries, which damage interrupts"
_CLIENTS = "tests/raft has no clients"
_DRAWN = "the storm draws several faults at once"

FAULTS: Mapping[str, FaultRow] = {
    # ---- network -------------------------------------------------------------------------------------------------
    "isolate": FaultRow(
        Family.NETWORK, "one broker is cut off from all others",
        Simulated(4, (0.3, 1.0, 3.0, 5.0, 8.0)), Real(_CUT_S, {**_ONE_LED, "clients": ("not cut", "cut")}), 3,
    ),
    "partition": FaultRow(
        Family.NETWORK, "a minority of the brokers is cut off from the majority",
        Simulated(4, (0.3, 5.0)), Real(_CUT_S, {"clients": (WITH_ALL, WITH_MANY, WITH_FEW)}), _DRAWN,
    ),
    "one_way": FaultRow(
        Family.NETWORK, "one direction of a partition is cut",
        Simulated(4, (0.3, 5.0)), Real(_CUT_S, {**_ONE_LED, "side": ("deaf", "mute"), "of": ("all", "one")}),
        "cut_link cuts one direction in four of ten draws",
    ),
    "unheard": FaultRow(
        Family.NETWORK, "one follower does not hear the leader of a group", Simulated(4, (0.8, 3.0)), _PAIRS,
        "cut_link may cut this direction",
    ),
    "cut_link": FaultRow(
        Family.NETWORK, "one pair of brokers is cut, in one direction or both", Simulated(3, (0.3, 5.0)), _PAIRS, 4,
    ),
    "chain": FaultRow(
        Family.NETWORK, "brokers in a row: each reaches only its neighbours",
        Simulated(3, (0.5, 4.0, 15.0), brokers_min=3), Real((8.0, 4.0, 15.0)), _DRAWN,
    ),
    "star": FaultRow(
        Family.NETWORK, "one broker reaches all others, and they reach only that one",
        Simulated(2, (0.5, 6.0), brokers_min=3), Real(_CUT_S, _ONE_LED), _DRAWN,
    ),
    "latency": FaultRow(  # real: ms; each direction has its own, so a round trip takes twice as long
        Family.NETWORK, "messages take longer, with jitter", Simulated(3, (0.5, 6.0)),
        Real(_CUT_S, {
            "where": (ALL, BROKERS, TO_CLIENTS), "latency": (50.0, 1.0, 10.0, 150.0), "jitter": (25.0, 1.0, 50.0)
        }), 3,
    ),
    "bandwidth": FaultRow(  # real: KB/s
        Family.NETWORK, "a link carries only so many bytes per second",
        _MEMORY, Real(_CUT_S, {"where": _WHERE, "rate": (100.0, 20.0, 1000.0)}), _MEMORY,
    ),
    "slow_close": FaultRow(  # real: ms
        Family.NETWORK, "the end of a connection is reported late",
        _MEMORY, Real(_CUT_S, {"where": _WHERE, "delay": (1000.0, 5000.0)}), _MEMORY,
    ),
    "slicer": FaultRow(  # real: delay in µs
        Family.NETWORK, "bytes arrive in small pieces", _MEMORY,
        Real(_CUT_S, {
            "where": _WHERE, "average_size": (64.0, 16.0, 512.0), "size_variation": (8.0,), "delay": (100.0, 1000.0)
        }), _MEMORY,
    ),
    "limit_data": FaultRow(
        Family.NETWORK, "a connection ends after so many bytes", _MEMORY,
        Real(_CUT_S, {"where": _WHERE, "bytes": (20_000.0, 500.0, 200_000.0)}, strikes_on=True), _MEMORY,
    ),
    "timeout": FaultRow(  # real: connections are closed after so many ms
        Family.NETWORK, "nothing passes, and connections are closed", "isolate and reset, drawn together",
        Real((2.0, 1.0, 4.0), {"where": (TO_CLIENTS, BROKERS), "timeout": (1000.0, 200.0)}, strikes_on=True), _DRAWN,
    ),
    "loss": FaultRow(Family.NETWORK, "some messages are lost", Simulated(3, (0.5, 6.0)), _TCP, "the simulator has it"),
    "seesaw": FaultRow(
        Family.NETWORK, "leaders are cut off one after another", Simulated(2, (4.0, 10.0), brokers_min=3),
        "isolate strikes a leader, again and again in pairs", _DRAWN,
    ),
    "duplicate": FaultRow(Family.NETWORK, "messages arrive twice", Simulated(2, (0.5, 5.0)), _TCP, 2),
    "drop": FaultRow(
        Family.NETWORK, "messages of some kinds are lost", Simulated(2, (0.5, 5.0)), _TCP, "the simulator has it",
    ),
    "stale": FaultRow(
        Family.NETWORK, "messages arrive once more, much later", Simulated(2, (0.5, 6.0)), _TCP, "the simulator has it",
    ),
    "reorder": FaultRow(
        Family.NETWORK, "messages overtake one another", Simulated(2, (0.5, 5.0)), _TCP, "the simulator has it",
    ),
    "reset": FaultRow(Family.NETWORK, "connections between brokers end", Simulated(3, (0.0, 0.1)), "reset_peer", 3),
    "reset_channel": FaultRow(
        Family.NETWORK, "one of two connections between brokers ends", "reset ends both", "reset_peer may end one", 4,
    ),
    "cut_channel": FaultRow(
        Family.NETWORK, "one of the two kinds of connections between brokers is cut", Simulated(3, (0.5, 3.0, 8.0)),
        "both kinds use one port", "reset_channel",
    ),
    "dead_connection": FaultRow(
        Family.NETWORK, "one connection carries nothing, and neither end is told", Simulated(3, (1.0, 4.0, 12.0)),
        "timeout", "reset_channel",
    ),
    "client_reset": FaultRow(
        Family.NETWORK, "connections of clients end", Simulated(3, (0.0, 0.1), single=True, brokers_min=1),
        "reset_peer", _CLIENTS,
    ),
    "reset_peer": FaultRow(  # real: each connection that is there or comes, after so many ms
        Family.NETWORK, "connections end, again and again", "reset and client_reset",
        Real((3.0, 0.5), {"where": _WHERE, "timeout": (500.0, 0.0, 2000.0)}, strikes_on=True), "reset",
    ),
    # ---- disks, which lose nothing that was synced ------------------------------------------------------------------
    "slow_disk": FaultRow(
        Family.DISK, "all operations of a disk take longer",
        Simulated(3, (0.5, 5.0), single=True, brokers_min=1), "slow_sync", 2,
    ),
    "slow_sync": FaultRow(  # real: seconds that each sync takes longer; 60: it hangs until the fault ends
        Family.DISK, "syncs take longer", "slow_disk and hung_disk",
        Real((3.0, 1.0, 6.0), {**_ONE_LED, "seconds": (0.1, 0.02, 0.4, 60.0), "pattern": ("*", "groups/*")}, _DISKS),
        "slow_disk",
    ),
    "hung_disk": FaultRow(
        Family.DISK, "operations of a disk do not end", Simulated(2, (0.2, 7.0), brokers_min=1),
        "slow_sync with `seconds` 60",
        "scenario sync_hangs",
    ),
    "hung_file": FaultRow(
        Family.DISK, "operations on one file do not end, and all other files are well",
        Simulated(2, (0.2, 7.0), brokers_min=1), "slow_sync with `pattern` and `seconds` 60", "scenario sync_hangs",
    ),
    "disk_error": FaultRow(
        Family.DISK, "one kind of operation fails with EIO: write, truncate, rename, remove, open or create",
        Simulated(3, (0.2, 3.0), brokers_min=1), "its disk fails syncs, reads and growth only", "fail_sync",
    ),
    "no_room": FaultRow(
        Family.DISK, "no file and no directory can be made; there may be room again before the broker restarts",
        Simulated(2, (0.3, 4.0), brokers_min=1), "disk_full", "fail_sync fills the disk instead in three of ten draws",
    ),
    "fail_sync": FaultRow(
        Family.DISK, "a sync fails, and the broker is restarted", Simulated(3, (0.1, 3.0), brokers_min=1),
        Real((1.0, 0.2, 3.0), {
            **_ONE_LED, "pattern": ("groups/*", "*", "ballots-*", "marks"), "then": (POWER, KILL)
        }, _DISKS, forgets=True), 2,
    ),
    "disk_full": FaultRow(
        Family.DISK, "writes fail after so many bytes", Simulated(2, (0.3, 4.0), brokers_min=1),
        Real((2.0, 1.0, 4.0), {**_ONE_LED, "bytes_left": (0.0, 30_000.0)}, _DISKS),
        "fail_sync fills the disk instead in three of ten draws",
    ),
    "trim": FaultRow(
        Family.DISK, "heads of logs are removed, as retention does", Simulated(3, (0.0, 1.0), brokers_min=1),
        "workloads with retention and trims do it", "tests of snapshots do it",
    ),
    # ---- processes and machines -------------------------------------------------------------------------------------
    "pause": FaultRow(
        Family.PROCESS, "a process stands still",
        Simulated(4, (0.5, 2.0, 2.0, 6.0, 6.0, 20.0), single=True, brokers_min=1), Real((6.0, 2.0, 0.5), _ONE_LED), 3,
    ),
    "kill": FaultRow(
        Family.PROCESS, "kill -9 of one broker", Simulated(4, (0.0, 4.0), brokers_min=1),
        Real((0.0, 1.0, 4.0), {"broker": (ANYBODY,), "who": (ANYONE,)}), 4,
    ),
    "kill_leader": FaultRow(
        Family.PROCESS, "kill -9 of a broker that leads a partition", "kill prefers leaders", Real((1.0, 0.0, 4.0)),
        "kill may strike a leader",
    ),
    "kill_majority": FaultRow(
        Family.PROCESS, "kill -9 of a majority", "kill_all strikes several brokers", Real((2.0, 0.0, 5.0)), _DRAWN,
    ),
    "kill_all": FaultRow(
        Family.PROCESS, "kill -9 of all brokers", Simulated(2, (0.0, 2.0)), Real((1.0, 0.0, 3.0)), "power_cut_all",
    ),
    "power_cut": FaultRow(
        Family.DISK, "one machine loses power, and writes that are not synced", Simulated(4, (0.0, 4.0), brokers_min=1),
        Real((1.0, 0.0, 3.0), _ONE_LED, _DISKS), 4,
    ),
    "power_cut_all": FaultRow(
        Family.DISK, "all machines lose power at once", Simulated(3, (0.0, 2.0)),
        Real((1.0, 0.0, 2.0), needs=_DISKS), 1,
    ),
    "crash_anywhere": FaultRow(
        Family.PROCESS, "a process ends between two steps of its loop", Simulated(5, (0.1, 2.0), brokers_min=1),
        "the moment of a signal is the kernel's", "kill and power_cut strike at any time",
    ),
    "crash_at_point": FaultRow(
        Family.PROCESS, "a process ends at a named point of its disk work",
        Simulated(5, (2.0, 6.0), damages=True, brokers_min=1),
        "power_cut strikes in the middle of a write or a sync", "tests of the disk have it",
    ),
    "stop": FaultRow(Family.PROCESS, "SIGTERM", Simulated(2, (0.2, 4.0), brokers_min=1), "rolling_restart", 2),
    "rolling_restart": FaultRow(
        Family.PROCESS, "SIGTERM to one broker after another", Simulated(2, (4.0, 9.0)), Real((0.0,), strikes_on=True),
        "stop, one broker at a time",
    ),
    # ---- the cluster ------------------------------------------------------------------------------------------------
    "join": FaultRow(
        Family.CLUSTER, "a broker joins, and may end meanwhile", Simulated(3, (1.0, 8.0), brokers_min=1),
        "tests/cli has joins of real processes", "the groups of tests/raft do not grow",
    ),
    "twin": FaultRow(
        Family.CLUSTER, "a second process starts with the number of a broker, on an empty or a copied data directory",
        Simulated(2, (1.0, 4.0), damages=True, brokers_min=3), Real((5.0, 8.0), _ONE, _DISKS, damages=True), _LOGS,
    ),
    "transfer": FaultRow(
        Family.CLUSTER, "a leader transfers its leadership", "workload moved does it", "workload moved does it", 3,
    ),
    "alter": FaultRow(
        Family.CLUSTER, "a setting of a topic is altered", Simulated(3, (0.2, 2.0), brokers_min=1),
        "workload altered does it", _CLIENTS,
    ),
    # ---- clocks -----------------------------------------------------------------------------------------------------
    "wall_jump": FaultRow(
        Family.CLOCK, "a wall clock jumps", Simulated(2, (0.5, 6.0), single=True),
        Real((4.0, 2.0, 8.0), {**_ONE_LED, "hours": (1.0, -1.0, 192.0, -192.0)}, frozenset({"faketime"})), 1,
    ),
    "wrong_start": FaultRow(
        Family.CLOCK, "a broker starts with a wrong clock and hears no other", Simulated(6, (2.0, 7.0)),
        "wall_jump moves the clock of a running process", "wall_jump holds for the next start",
    ),
    "drift": FaultRow(
        Family.CLOCK, "clocks run too fast or too slow", Simulated(1, (2.0, 10.0), single=True),
        "libfaketime only moves clocks here", "wall_jump changes the rate at the next start",
    ),
    # ---- files: damage to synced bytes ------------------------------------------------------------------------------
    "wipe": FaultRow(
        Family.FILES, "a broker restarts on an empty disk", Simulated(4, (0.5, 4.0), damages=True, brokers_min=3),
        Real((1.0, 0.0, 3.0), _ONE, damages=True), _LOGS,
    ),
    "wipe_then_kill": FaultRow(
        Family.FILES, "a disk is lost while a minority is down, and the last holders are killed", "next_disk",
        Real((3.0, 1.0, 5.0), _ONE, damages=True), _LOGS,
    ),
    "old_disk": FaultRow(
        Family.FILES, "a replaced disk comes back", Simulated(2, (0.5, 5.0), damages=True, brokers_min=3),
        "a run keeps no copy of a disk", _LOGS,
    ),
    "next_disk": FaultRow(
        Family.FILES, "a second disk is replaced as soon as all is well after the first",
        Simulated(2, (4.0, 8.0), damages=True, brokers_min=3), "wipe_then_kill", "scenario next_disk",
    ),
    "lost_config": FaultRow(
        Family.FILES, "a CONFIG that lists a replaced disk reaches no other broker",
        Simulated(1, (3.0, 6.0), damages=True, brokers_min=3),
        "nothing outside sees when the CONFIG is appended", _LOGS,
    ),
    "remove_group": FaultRow(
        Family.FILES, "the data directory of one group is gone", Simulated(3, (0.5, 4.0), damages=True, brokers_min=3),
        "wipe removes all of them", _LOGS,
    ),
    "flip_bits": FaultRow(
        Family.FILES, "bits of stored files flip", Simulated(4, (0.5, 4.0), damages=True, brokers_min=3),
        Real((1.0, 3.0), {"broker": (ANYBODY,), "file": (ANY_FILE,), "bits": (0.0,)}, damages=True, scars=True), _LOGS,
    ),
    "read_error": FaultRow(
        Family.DISK, "reads of the logs fail", Simulated(2, (0.5, 3.0), damages=True, brokers_min=3),
        Real((2.0, 1.0), _ONE, _DISKS, damages=True, scars=True), _LOGS,
    ),
    "torn_tail": FaultRow(
        Family.FILES, "a log ends in the middle of a write", "power_cut and crash_at_point tear tails",
        Real((1.0, 0.0), _ONE, _DISKS), "power_cut",
    ),
}  # fmt: skip
"""In the order in which the harness of real processes does each once. The simulator draws in this order, too."""
