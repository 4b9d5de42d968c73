"""What may be changed of a group that is there, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinymq.base.errors import InvalidConfig, WrongKind
from tinymq.base.group_config import FIXED_SETTINGS, LEASE_SETTINGS, GroupKind, parse_group_settings
from tinymq.broker.groups.definition import Group


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of a group: of all these settings or of none."""

    settings: tuple[tuple[str, str], ...] = ()
    paused: bool | None = None  # None: as it is
    command_id: bytes = b""


def altered(group: Group, change: Alteration) -> Group:
    """The group after the change; the same value if the change is made already.

    Raises InvalidConfig for settings that no such group can have, or that never change; WrongKind: a stream group does
    not pause.
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


def agreed_settings(before: Group, after: Group) -> list[str]:
    """The changed settings that hold for leases that are there: they wait until no record is leased."""
    if before.kind is not GroupKind.QUEUE:
        return []
    old, new = before.config(), after.config()
    return sorted(name for name in LEASE_SETTINGS if old[name] != new[name])
