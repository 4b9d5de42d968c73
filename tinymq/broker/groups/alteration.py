"""Changes of an existing group: which settings may change, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinymq.base.errors import InvalidConfig, WrongKind
from tinymq.base.group_config import FIXED_SETTINGS, LEASE_SETTINGS, GroupKind, parse_group_settings
from tinymq.broker.groups.definition import GroupDefinition


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of a group's settings, which is made as a whole or not at all."""

    settings: tuple[tuple[str, str], ...] = ()
    paused: bool | None = None  # None: no change
    command_id: bytes = b""


def altered(group: GroupDefinition, change: Alteration) -> GroupDefinition:
    """The group after the change; the same value if the group has those settings already.

    Raises InvalidConfig for a setting that groups of this kind do not have or cannot change; WrongKind for a pause of a
    stream group.
    """
    if change.command_id and change.command_id == group.altered_by:
        return group
    wanted = parse_group_settings(group.kind, change.settings)
    if group.kind is GroupKind.STREAM:
        if change.paused is not None:
            raise WrongKind(f"{group.name!r} is a stream group", hint="its members pause by themselves")
        for name in sorted(FIXED_SETTINGS & dict(change.settings).keys()):
            if wanted[name] != group.config()[name]:
                hint = "members count with it from before they join: delete the group, and make it again"
                raise InvalidConfig(f"{name} of a stream group does not change", hint=hint)
    settings = tuple({**dict(group.settings), **dict(change.settings)}.items())
    paused = group.paused if change.paused is None else change.paused
    if (settings, paused) == (group.settings, group.paused):
        return group
    return replace(group, settings=settings, paused=paused, altered_by=change.command_id)


def agreed_settings(before: GroupDefinition, after: GroupDefinition) -> list[str]:
    """The changed settings on which granted leases depend. They may change only while no record is leased."""
    if before.kind is not GroupKind.QUEUE:
        return []
    old, new = before.config(), after.config()
    return sorted(name for name in LEASE_SETTINGS if old[name] != new[name])
