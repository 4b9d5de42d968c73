"""Timing for clusters whose tests expect one outcome of each call.

A busy machine may be slow for a second. A leadership that moves for such a reason rightly ends a call as OutcomeUnknown
or NotLeader.
"""

from __future__ import annotations

from dataclasses import replace

from tinymq.base.config import Timing

PATIENT = Timing(gone_after_s=20.0, sync_hang_s=30.0, leader_return_s=60.0)
QUICK_CHECKS = replace(PATIENT, retention_check_s=0.1)
