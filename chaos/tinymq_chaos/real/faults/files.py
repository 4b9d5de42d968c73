"""Faults that take synced bytes (wiped data directories, flipped bits), and torn tails. They strike one broker at a
time.

The promises bound the damage. Entries that no mark on the disk covers yet stay as they are: after a flip there and an
immediate crash, recovery takes them for a torn tail (docs/adr/0005). A tail is torn only above the synced part, which
the journal of the broker's disk tells.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path

from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER_SIZE, parse_header
from tinymq.log.broker_files.durability_marks import DurabilityMark, load_marks
from tinymq.log.files.files import RealFiles
from tinymq.log.files.layout import GROUPS, INDEX, MARKS, SEGMENT, SNAPSHOT, VOTES, first_index_of, group_of
from tinymq_chaos.faults import ANY_FILE
from tinymq_chaos.real.disks.power_cut import DeadDirectory
from tinymq_chaos.real.faults.disks import die_at_write, until_serving
from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage, action
from tinymq_chaos.real.faults.processes import broker_names, describe_gone
from tinymq_chaos.real.faults.victims import live_brokers

BITS_MAX = 3
FILES = (SEGMENT, SEGMENT, SEGMENT, INDEX, SNAPSHOT, *VOTES, MARKS)  # a segment more often than the others
BETWEEN_S = 1.0  # the other brokers go on with writes for so long


@action
def wipe(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Replace a broker's disk by an empty one."""
    broker = int(how["broker"])
    with stage.alone(broker):
        stage.kill(broker)
        before = directory_size(stage.data(broker))
        stage.wipe(broker)
        effect = describe_loss(before, directory_size(stage.data(broker)))
    yield f"broker {broker}"
    stage.start(broker)
    return effect


def directory_size(data: Path) -> tuple[int, int]:
    """Return the number of files in a broker's data directory, and of bytes in them."""
    sizes = [path.stat().st_size for path in data.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def describe_loss(before: tuple[int, int], after: tuple[int, int]) -> str:
    """Return the loss as an effect."""
    files, size = before[0] - after[0], before[1] - after[1]
    return f"{files} files with {size} bytes were gone" if files > 0 else ""


@action
def wipe_then_kill(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Amnesia: a majority that must not act as one.

    A minority is down, and the others continue. Then one of these loses its disk, and the rest, which hold the last
    copies of later writes, are killed. The minority returns and meets one broker that remembers nothing.
    """
    wiped = int(how["broker"])
    others = rng.sample([b for b in stage.brokers if b != wiped], len(stage.brokers) - 1)
    few = (len(stage.brokers) - 1) // 2
    behind, holders = others[:few], others[few:]
    if not few or len(live_brokers(stage)) < len(stage.brokers):
        yield None
        return None
    with stage.alone(*stage.brokers):
        stage.kill(*behind)
        time.sleep(BETWEEN_S)
        stage.kill(wiped)
        before = directory_size(stage.data(wiped))
        stage.wipe(wiped)
        effect = describe_loss(before, directory_size(stage.data(wiped)))
        stage.kill(*holders)
        killed = describe_gone(stage, [*behind, wiped, *holders])
        stage.start(wiped, *behind)
    yield f"broker {wiped}, with {broker_names(behind)} behind; then {broker_names(holders)} killed"
    stage.start(*holders)
    return f"{effect}, and {killed}" if effect and killed else ""


@action
def flip_bits(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Flip a few bits in the used bytes of one kind of file.

    The broker is stopped politely, so that its marks cover everything.
    """
    broker, kind = int(how["broker"]), str(how["file"])
    with stage.alone(broker):
        stage.stop(broker)
        flips = _flips(stage.data(broker), rng, rng.choice(FILES) if kind == ANY_FILE else kind, int(how["bits"]))
        flipped = sum(flip_bit(stage.data(broker) / path, place, bit) for path, place, bit in flips)
        stage.start(broker)
    yield f"broker {broker}: {', '.join(f'{path} at {place}' for path, place, _ in flips)}" if flips else None
    return f"{flipped} bits had changed when the file was read again" if flipped else ""


def flip_bit(path: Path, place: int, bit: int) -> bool:
    """Flip a bit; return whether it changed."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
    with path.open("rb") as file:
        file.seek(place)
        return file.read(1)[0] ^ byte == 1 << bit


def _flips(data: Path, rng: random.Random, kind: str, bits: int) -> list[tuple[str, int, int]]:
    """Return (path in the data directory, byte, bit) of bits to flip in files of this kind, or of another kind if no
    such file exists.
    """
    for each in dict.fromkeys((kind, SEGMENT)):
        ends = {path: end for path in files_of(data, each) if (end := covered_bytes(data, path)) > 0}
        if ends:
            paths = sorted(ends)
            chosen = [rng.choice(paths) for _ in range(bits or rng.randint(1, BITS_MAX))]
            return sorted({(path, rng.randrange(ends[path]), rng.randrange(8)) for path in chosen})
    return []


def files_of(data: Path, kind: str) -> Sequence[str]:
    """Return the paths in a broker's data directory that end so."""
    found = data.glob(f"{GROUPS}/*/*/*{kind}") if kind.startswith(".") else [data / kind]
    return sorted(path.relative_to(data).as_posix() for path in found if path.exists())


def covered_bytes(data: Path, path: str) -> int:
    """Return how many bytes of a stopped broker's file may be damaged, without the zeros behind the used part."""
    size = len((data / path).read_bytes().rstrip(b"\0"))
    first = first_index_of(path.rpartition("/")[2], SEGMENT)
    group = group_of(*path.split("/")[1:3]) if first is not None else None
    if first is None or group is None:
        return size
    mark = load_marks(RealFiles(data)).marks.get(group, DurabilityMark(group))
    if first != mark.segment:
        return size if first < mark.segment else 0
    with contextlib.suppress(CorruptData):
        head = (data / path).read_bytes()[mark.position : mark.position + HEADER_SIZE]
        return mark.position + HEADER_SIZE + parse_header(head, 0).length
    return mark.position  # the marked frame is damaged already


@action
def torn_tail(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Cut the power while a log is written: the last write is there up to some byte.

    If all of it was synced already, the broker is just killed.
    """
    standing = live_brokers(stage)
    broker = int(how["broker"]) or (rng.choice(standing) if standing else 0)
    if broker not in standing:
        yield None
        return None
    until_serving(stage, [broker])
    with stage.alone(broker):
        when = "in the middle of" if die_at_write(stage, rng, [broker], "write groups/*.log") else "without"
        stage.kill(broker)
        torn = DeadDirectory(stage.data(broker)).tear(random.Random(rng.random()))
        stage.tell(f"broker {broker} loses power")
        if not torn.sectors:
            stage.start(broker)
    yield f"broker {broker}, {when} a write: {torn}" if torn.sectors else None
    stage.start(broker)
    return f"{torn.sectors} sectors were torn"
