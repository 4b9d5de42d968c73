"""Faults that take synced bytes: wiped disks, lost directories, flipped bits, unreadable sectors.

The promises of tinymq need a majority of readable disks. So only one broker at a time is damaged, and another one only
after it has recovered, as a member of all its groups. Flipped bits may stay undiscovered, so a broker that had some is
the only one damaged for the rest of the run.
"""

from __future__ import annotations

import contextlib
import posixpath
import random
from collections.abc import Iterator, Sequence

from tinymq.base.errors import CorruptData
from tinymq.base.types import METADATA_GROUP
from tinymq.format.entry import HEADER_SIZE, parse_header
from tinymq.log.broker_files.durability_marks import DurabilityMark, load_marks
from tinymq.log.files.layout import SEGMENT, first_index_of, group_of
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.victims import anyone, both_ways
from tinymq_chaos.sim.virtual.disk import SimFiles
from tinymq_chaos.sim.virtual.synced_files import SyncedFiles
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

BITS_MAX = 3
LOOKS_S = 0.000_5  # how often an impatient operator checks the cluster's health
FLIPPED = (".log", ".log", ".log", ".index", ".state", "ballots-a", "ballots-b", "marks")


def victim(world: World, rng: random.Random) -> SimBroker | None:
    """Return the broker whose disk may be damaged now. None: no broker's."""
    for broker in world.brokers.values():
        if broker.damaged and broker.whole:
            broker.damaged = False
    damaged = [b for b in world.brokers.values() if b.damaged]
    assert len(damaged) < 2, damaged
    if damaged:
        return damaged[0] if damaged[0].scarred else None
    broker = anyone(world, rng)
    return broker if all(not b.unhealthy() for b in world.brokers.values() if b is not broker) else None


@action
def wipe(world: World, rng: random.Random) -> Iterator[str | None]:
    """Replace the disk by an empty one."""
    broker = victim(world, rng)
    if broker is None:
        yield None
        return
    broker.wanted = False
    broker.wipe()
    yield f"broker {broker.id}"
    broker.wanted = True
    broker.revive()


@action
def old_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    """Replace the disk by an empty one; later the old disk comes back."""
    broker = victim(world, rng)
    if broker is None:
        yield None
        return
    files = broker.files
    broker.wipe()
    broker.revive()
    yield f"broker {broker.id}"
    others = [other for other in world.brokers.values() if other is not broker]
    if not all(other.whole for other in others):
        return  # only one disk may be damaged at a time, so the old disk stays away
    broker.kill("gets its old disk back")
    broker.files = files
    broker.damaged = True
    broker.revive()


@action
def lost_config(world: World, rng: random.Random) -> Iterator[str | None]:
    """A broker returns with an empty disk and is cut off together with the metadata leader: no other broker gets the
    CONFIG that lists its new replica.
    """
    broker, leader = victim(world, rng), world.leader(METADATA_GROUP)
    if broker is None or leader in (None, broker):
        yield None
        return
    assert leader is not None
    few = [leader.id, broker.id]
    over = False

    def cut_off() -> None:
        if broker.groups() and not over:
            world.cut("lost config", both_ways(few, [n for n in world.brokers if n not in few]))
        elif not over:
            world.clock.call_later(0.001, cut_off)

    broker.wipe()
    broker.revive()
    cut_off()
    yield f"{few}, broker {broker.id} with an empty disk"
    over = True
    world.mend("lost config")


@action
def next_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    """Replace a disk, and replace a second one at the very moment when all is well again, while all others end."""
    first = victim(world, rng)
    if first is None:
        yield None
        return
    following = rng.choice([broker for broker in world.brokers.values() if broker is not first])
    over = False

    def go_on() -> None:
        others = [broker for broker in world.brokers.values() if broker is not first]
        harmed = first.scarred or any(broker.damaged for broker in others)
        if over or harmed:
            return
        if any(broker.unhealthy() for broker in world.brokers.values()):
            world.clock.call_later(LOOKS_S, go_on)
            return
        first.damaged = False
        for broker in world.brokers.values():
            if broker is not following:
                rng.choice((broker.kill, broker.power_cut))()
        following.wipe()

    first.wipe()
    first.revive()
    go_on()
    yield f"broker {first.id}, then {following.id}"
    over = True


@action
def remove_group(world: World, rng: random.Random) -> Iterator[str | None]:
    """Remove the directory of one of its groups before the broker starts."""
    broker = victim(world, rng)
    folders = sorted({posixpath.dirname(p) for p in broker.files.paths() if p.endswith(".log")}) if broker else []
    if broker is None or not folders:
        yield None
        return
    broker.damaged = broker.tampered = True
    broker.wanted = False
    broker.kill()
    folder = rng.choice(folders)
    broker.files.lose_folder(folder)
    yield f"{folder} of broker {broker.id}"
    broker.wanted = True
    broker.revive()


@action
def flip_bits(world: World, rng: random.Random, kinds: Sequence[str] = FLIPPED) -> Iterator[str | None]:
    """Flip a few bits in the used bytes of one kind of file. Half the time the broker restarts, and has to notice
    then."""
    broker, kind = victim(world, rng), rng.choice(kinds)
    files = broker.files.files_of(lambda path: path.endswith(kind)) if broker is not None else []
    files = [path for path in files if broker is not None and broker.files.content(path)]
    if broker is None or not files:
        yield None
        return
    broker.damaged = broker.scarred = broker.tampered = True
    flips = []
    for _ in range(rng.randint(1, BITS_MAX)):
        path = rng.choice(files)
        end = covered_bytes(broker.files, path)
        if end > 0:
            flips.append((path, rng.randrange(end), rng.randrange(8)))
            broker.files.flip_bit(*flips[-1])
    if broker.up and rng.random() < 0.5:
        broker.kill()
    yield f"at broker {broker.id}: {flips}"


def covered_bytes(files: SimFiles, path: str) -> int:
    """Return how many bytes of a file may be damaged.

    Entries that no mark on the disk covers yet are excluded. After a flip there and an immediate crash, recovery takes
    them for a torn tail: a documented limit (docs/adr/0005).
    """
    content = files.content(path)
    first = first_index_of(posixpath.basename(path), SEGMENT)
    group = group_of(*path.split("/")[1:3]) if first is not None else None
    if first is None or group is None:
        return len(content)
    mark = load_marks(SyncedFiles(files)).marks.get(group, DurabilityMark(group))  # type: ignore[arg-type]
    if first != mark.segment:
        return len(content) if first < mark.segment else 0
    with contextlib.suppress(CorruptData):
        return mark.position + HEADER_SIZE + parse_header(content, mark.position).length
    return mark.position  # the marked frame is damaged already


@action
def read_error(world: World, rng: random.Random) -> Iterator[str | None]:
    """Fail every read of its logs with EIO."""
    broker = victim(world, rng)
    if broker is None:
        yield None
        return
    broker.damaged = broker.scarred = broker.tampered = True
    broker.files.fail_read("groups/*")
    yield f"at broker {broker.id}"
    broker.files.mend_reads()
    if broker.up:
        broker.kill()
