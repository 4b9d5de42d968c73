"""The error for a stored file of a version that this build does not read."""

from __future__ import annotations

from tinymq.base.errors import UnsupportedVersion

_HINT = (
    "start this broker with the newer tinymq that wrote it. Stored data does not go back to an older build once the "
    "cluster's feature level is raised: docs/operations.md, Upgrading"
)


def newer_version(what: str, version: object, known: int) -> UnsupportedVersion:
    """Return the error for `what`, such as "a segment", whose whole bytes say another version than those up to
    `known`."""
    return UnsupportedVersion(
        f"a newer tinymq wrote {what}: it has version {version} of its format, and this build reads versions up to"
        f" {known}",
        hint=_HINT,
    )
