"""`tinymq scan`: which brokers have served which range reads, by the ids that those who read have given them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import NotFound
from tinymq.base.quantity import named, quantity
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import HERE, Where

if TYPE_CHECKING:
    from tinymq.client import ScanDescription, ScanSummary

app = App(name="scan", help="See which replicas served a scan: list, describe.")

ScanId = Annotated[str, Parameter(help="As `tinymq scan list` shows it, or as who reads says it.")]


@app.command(name="list")
def list_(*, where: Where = HERE, output: Output = "table") -> None:
    """List the scans that the brokers remember, the latest first: what was sent in all, and by which brokers.

    A scan is one planned read, such as a query of Spark, whose fetches all carry its id; who reads chooses it. Brokers
    count what they send under it, and remember the latest 1,000 scans until they stop. `of leaders` is what brokers
    sent of partitions that they led: 0 when followers served everything.
    """
    with where.connect() as mq:
        found = mq.admin.list_scans()
    if output == "json":
        print_json({"scans": [_summary(scan) for scan in found]})
        return
    rows = [
        (s.scan_id, ", ".join(map(str, s.brokers)), s.bytes, s.leader_bytes, s.records, f"{s.last_s:.0f}s")
        for s in found
    ]
    print_table(["scan", "brokers", "bytes", "of leaders", "records", "last ago"], rows)


@app.command
def describe(scan_id: ScanId, /, *, where: Where = HERE, output: Output = "table") -> None:
    """Show who served a scan: for each partition the broker, whether it led the partition, and what it sent.

    A task that was run again fetched its range again: that counts twice. What a broker sent before it started anew is
    not in it.
    """
    with where.connect() as mq:
        found = mq.admin.describe_scan(scan_id)
    if not found.served:
        silent = f"; not answered by {named('broker', found.silent)}" if found.silent else ""
        hint = "see: tinymq scan list; brokers forget the oldest scans, and all of them when they stop"
        raise NotFound(f"no broker knows scan {scan_id!r} (any more){silent}", hint=hint)
    if output == "json":
        print_json(_document(found))
        return
    rows = [(s.topic, s.partition, s.broker, s.role, s.bytes, s.records, f"{s.last_s:.0f}s") for s in found.served]
    print_table(["topic", "partition", "broker", "role", "bytes", "records", "last ago"], rows)
    say(f"{quantity(found.bytes_by('follower'), 'byte')} by followers, {found.bytes_by('leader')} by leaders")
    if found.silent:
        say(f"{named('broker', found.silent)} did not answer, and may also have served the scan")


def _summary(scan: ScanSummary) -> dict[str, Any]:
    return {
        "scan": scan.scan_id,
        "brokers": list(scan.brokers),
        "bytes": scan.bytes,
        "leader_bytes": scan.leader_bytes,
        "records": scan.records,
        "last_s": scan.last_s,
    }


def _document(scan: ScanDescription) -> dict[str, Any]:
    return {
        "scan": scan.scan_id,
        "follower_bytes": scan.bytes_by("follower"),
        "leader_bytes": scan.bytes_by("leader"),
        "served": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "broker": each.broker,
                "role": each.role,
                "bytes": each.bytes,
                "records": each.records,
                "last_s": each.last_s,
            }
            for each in scan.served
        ],
        "silent": list(scan.silent),
    }
