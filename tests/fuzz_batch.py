"""Damage batches at random and read the accepted ones: `python tests/fuzz_batch.py CASES SEED`. With VERBOSE it prints
each case first, so that a case that ends the process can be found.
"""

from __future__ import annotations

import os
import random
import struct
import sys

import pyarrow as pa
import pyarrow.compute as pc

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, InvalidBatch
from tinymq.format.batch import Codec, check_batch, decode_batch, encode, pack_batch, record_bytes

LIMITS = Limits()
LIES = (0, 1, -1, 2, 7, 8, 0x7FFFFFFF, -0x80000000, 1 << 20, 255, 1 << 30)


def seeds(rng: random.Random) -> list[bytes]:
    found = []
    for codec in Codec:
        for rows in (1, 2, 70, 1000):
            for rich in (False, True):
                keys = [rng.choice((None, b"k%d" % i)) for i in range(rows)] if rich else None
                headers = [rng.choice((None, [], [("h", b"v"), ("ü", None)])) for _ in range(rows)] if rich else None
                values = [rng.choice((None, b"", b"v" * rng.randrange(50))) for _ in range(rows)]
                message = encode(keys, values, headers, [rng.randrange(1 << 50) for _ in range(rows)], codec)
                found.append(pack_batch(message, record_count=rows, codec=codec))
    return found


def damage(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.choice((1, 1, 2, 5))):
        # most damage that matters is in the metadata: the first kilobyte
        reach = min(len(data), rng.choice((64, 1000, len(data))))
        at = rng.randrange(reach)
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                at &= ~3
                data[at : at + 4] = struct.pack("<i", rng.choice(LIES))
            case 3:
                at &= ~7
                data[at : at + 8] = struct.pack("<q", rng.choice((*LIES, 1 << 40, 1 << 62, -(1 << 63))))
            case 4:
                value = int.from_bytes(data[at : at + 4], "little", signed=True)
                data[at : at + 4] = struct.pack("<i", max(-(1 << 31), min((1 << 31) - 1, value + rng.randrange(-9, 9))))
            case 5:
                del data[rng.randrange(len(data)) :]
                if len(data) < 40:
                    return bytes(data)
    return bytes(data)


def read_everything(batch: pa.RecordBatch) -> None:
    batch.to_pylist()
    record_bytes(batch)
    batch.serialize()
    for column in batch.columns:
        pc.count(column)
        pa.concat_arrays([column, column]).to_pylist()


def main(cases: int, seed: int) -> None:
    rng = random.Random(seed)
    originals = seeds(rng)
    believed = 0
    for case in range(cases):
        payload = damage(rng, rng.choice(originals))
        if "VERBOSE" in os.environ:
            print(case, payload.hex(), flush=True)
        try:
            check_batch(payload, LIMITS)
        except (InvalidBatch, BatchTooLarge):
            continue
        read_everything(decode_batch(payload, LIMITS))
        believed += 1
    print(f"{cases} cases from seed {seed}: {believed} believed and read, the rest refused")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
