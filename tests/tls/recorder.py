"""`python -m tests.tls.recorder`: records all TCP payloads on loopback until its input ends.

Then it reads secrets from there, as JSON, {name: text}, and prints which were among the bytes. It has a process of its
own, so that it keeps up with a busy cluster, and a ring of memory that the kernel fills, whose overflow it reports.
"""

from __future__ import annotations

import json
import mmap
import select
import socket
import struct
import sys
from collections import defaultdict

SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS = 263, 5, 6
ETH_P_ALL, OUTGOING = 0x0003, 4
BLOCK_BYTES, SLOT_BYTES, BLOCKS = 1 << 20, 66 * 1024, 256  # a packet of loopback has at most 64 KiB
SLOTS_PER_BLOCK = BLOCK_BYTES // SLOT_BYTES
SLOTS = SLOTS_PER_BLOCK * BLOCKS
HEADER = struct.Struct("@LIIHHII")  # tpacket_hdr
KIND_AT = 32 + 10  # of sockaddr_ll, behind the header
TO_USER, TO_KERNEL = 1, 0


class Recording:
    """All payloads by connection and direction."""

    def __init__(self) -> None:
        self.flows: dict[bytes, bytearray] = defaultdict(bytearray)
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        ring = struct.pack("IIII", BLOCK_BYTES, BLOCKS, SLOT_BYTES, SLOTS)
        self._sock.setsockopt(SOL_PACKET, PACKET_RX_RING, ring)
        self._ring = mmap.mmap(self._sock.fileno(), BLOCK_BYTES * BLOCKS)
        self._sock.bind(("lo", 0))
        self._next = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def take(self) -> None:
        """Take all packets that are in the ring."""
        while True:
            at = self._next // SLOTS_PER_BLOCK * BLOCK_BYTES + self._next % SLOTS_PER_BLOCK * SLOT_BYTES
            status, _, length, mac, *_ = HEADER.unpack_from(self._ring, at)
            if not status & TO_USER:
                return
            if self._ring[at + KIND_AT] == OUTGOING:  # each packet of loopback is seen twice
                self._keep(self._ring[at + mac : at + mac + length])
            struct.pack_into("@L", self._ring, at, TO_KERNEL)
            self._next = (self._next + 1) % SLOTS

    def _keep(self, frame: bytes) -> None:
        if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            return
        start = 14 + (frame[14] & 15) * 4
        payload = frame[start + (frame[start + 12] >> 4) * 4 :]
        self.flows[frame[26:34] + frame[start : start + 4]] += payload

    def lost(self) -> int:
        """Packets for which there was no room."""
        return int(struct.unpack("II", self._sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1])


def main() -> None:
    recording = Recording()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([recording, sys.stdin], [], [])
        recording.take()
        if sys.stdin in ready:
            break
    secrets = json.loads(sys.stdin.read())
    found = [name for name, text in secrets.items() if any(text.encode() in flow for flow in recording.flows.values())]
    size = sum(map(len, recording.flows.values()))
    print(json.dumps({"found": sorted(found), "bytes": size, "lost": recording.lost()}))


if __name__ == "__main__":
    main()
