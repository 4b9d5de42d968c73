"""Describes a broker as one JSON document, for people and scripts: its status and its errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any

from tinymq.base.version import VERSION
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.state import PartitionState
from tinymq.metrics.watched import CHANNELS_MAX, GROUPS_MAX, GroupRow, Watched, channel_lags
from tinymq.raft import GroupStatus, Role

REPLICAS_AT_ONCE = 200  # described between two pauses


async def describe(
    watched: Watched,
    *,
    uptime_s: float,
    wall_time_s: float,
    errors: Mapping[str, Mapping[str, int]],
    pause: Callable[[], Awaitable[None]],
) -> dict[str, Any]:
    """Describe the whole broker. `pause` is awaited between replicas, so that the broker's loop runs other tasks."""
    app, broker = watched.app, watched.broker
    document: dict[str, Any] = {
        "version": VERSION,
        "cluster_id": broker.env.cluster_id.hex() if broker is not None else None,
        "broker_id": app.config.broker_id,
        "rack": app.config.rack,
        "address": app.address,
        "peer_address": app.peer_address,
        "state": app.serving.state.value,
        "reason": app.reason,
        "uptime_s": round(uptime_s, 3),
        "wall_time_s": round(wall_time_s, 3),
        "metadata_leader": app.metadata_leader() or None,
        "peers": [
            {"broker": peer, "alive": watched.host is not None and watched.host.alive(peer)}
            for peer in watched.others()
        ],
        "errors": errors,
        "replicas": [],
        "channels": [],
        "groups": [],
    }
    for count, group in enumerate(list(watched.groups.values()), 1):
        topic, state = watched.topic_of(group.id), watched.state_of(group.id)
        document["replicas"].append(_replica(topic, group.status(), state))
        if state is not None and group.is_leader:
            document["channels"] += _channels(topic, group.id.partition, state)
        if count % REPLICAS_AT_ONCE == 0:
            await pause()
    document["channels_not_shown"] = max(0, len(document["channels"]) - CHANNELS_MAX)
    del document["channels"][CHANNELS_MAX:]
    await _add_groups(document, watched, pause)
    document["replicas"] += [
        {
            "topic": q.topic, "topic_id": q.topic_id.hex(), "partition": q.partition,
            "role": Role.FAILED.value, "reason": f"{error.code}: {error}",
        }
        for q, error in watched.not_opened()
    ]  # fmt: skip
    return document


def dump(document: Mapping[str, Any]) -> bytes:
    """Return the text, with each item of a list on its own line."""
    lines = [f" {json.dumps(name)}: {_value(value)}" for name, value in document.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def _channels(topic: str, partition: int, state: PartitionState) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "channel": channel, "lag": lag} for channel, lag in channel_lags(state)
    ]


async def _add_groups(document: dict[str, Any], watched: Watched, pause: Callable[[], Awaitable[None]]) -> None:
    """Add the consumer groups of the partitions that are led here, and the members of those coordinated here."""
    rows = watched.group_rows()
    for count, row in enumerate(islice(rows, GROUPS_MAX), 1):
        document["groups"].append(_group(row))
        if count % REPLICAS_AT_ONCE == 0:
            await pause()
    document["groups_not_shown"] = sum(1 for _ in rows)
    document["coordinated"] = [{"group": name, "members": members} for name, members in watched.coordinated()]


def _group(row: GroupRow) -> dict[str, Any]:
    progress = row.progress()
    found: dict[str, Any] = {
        "topic": row.topic,
        "partition": row.partition,
        "group": row.group,
        "kind": progress.kind.name.lower(),
        "lag": progress.lag,
        "oldest_ms": progress.oldest_ms,
    }
    if progress.kind is CursorKind.QUEUE:
        found |= {
            "leased": progress.leased,
            "staged": progress.staged,
            "waiting": progress.waiting,
            "burying": progress.burying,
            "workers": progress.workers,
            "blocked": [{"by": each.by.value, "reason": each.reason} for each in progress.blocked],
        }
    return found


def _replica(topic: str, status: GroupStatus, state: PartitionState | None) -> dict[str, Any]:
    return {
        "topic": topic,
        "topic_id": status.group.topic_id.hex(),  # a recreated topic has another id
        "partition": status.group.partition,
        "role": status.role.value,
        "reason": status.reason,
        "term": status.term,
        "leader": status.leader,
        "last_index": status.last_index,
        "durable_index": status.durable_index,
        "commit_index": status.commit_index,
        "applied_index": status.applied_index,
        "log_start": state.log_start if state is not None else status.log_start,
        "high_watermark": status.high_watermark,
        "bytes": status.size_bytes,
    }
