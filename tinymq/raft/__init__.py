"""PySyncObj behind one door: groups, their journal, messages, transport and host."""

from tinymq.raft.election import Given
from tinymq.raft.group import Group, GroupStatus, Role
from tinymq.raft.host import Host
from tinymq.raft.membership import Membership, Replica, make_first_entry
from tinymq.raft.state import StateMachine

__all__ = [
    "Given", "Group", "GroupStatus", "Host", "Membership", "Replica", "Role", "StateMachine", "make_first_entry",
]  # fmt: skip
