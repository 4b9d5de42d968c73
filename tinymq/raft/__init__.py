"""PySyncObj behind one door: groups, their journal, messages, transport and host."""

from tinymq.raft.host.host import Host
from tinymq.raft.replica.group import Group, GroupStatus, Role
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, Replica, make_first_entry
from tinymq.raft.state.env import StateMachine

__all__ = [
    "Group",
    "GroupStatus",
    "Host",
    "LeadershipOrigin",
    "Membership",
    "Replica",
    "Role",
    "StateMachine",
    "make_first_entry",
]  # fmt: skip
