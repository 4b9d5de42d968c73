"""`tinymq scan`: list and describe scans, by the ids that their readers chose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import NotFound
from tinymq.base.quantity import named, quantity
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.client import ScanDescription, ScanSummary

HELP = """
Example: tinymq scan list
"""

app = App(name="scan", help="Show which replicas served a scan: list, describe.", help_epilogue=HELP)

ScanId = Annotated[str, Parameter(help="The scan's id, as `tinymq scan list` or the reader shows it.")]


@app.command(name="list")
def list_(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """List the scans that the brokers remember, the latest first: the bytes sent, and the brokers that sent them.

    A scan is one planned read, such as a Spark query. Its reader chooses an id, which every fetch of the scan carries.
    Brokers count the bytes that they send for each id, and remember the latest 1,000 scans until they stop. `by
    leaders` counts the bytes that brokers sent from partitions that they led: 0 if followers served everything.
    """
    with servers.connect() as mq:
        scans = mq.admin.list_scans()
    if output == "json":
        print_json({"scans": [_summary(scan) for scan in scans]})
        return
    rows = [
        (s.scan_id, ", ".join(map(str, s.brokers)), s.bytes, s.leader_bytes, s.records, f"{s.last_s:.0f}s")
        for s in scans
    ]
    print_table(["scan", "brokers", "bytes", "by leaders", "records", "last ago"], rows)


@app.command
def describe(scan_id: ScanId, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show which brokers served a scan: for each partition the broker, its role, and the bytes that it sent.

    A task that was retried fetched its range twice, so its bytes count twice. Bytes that a broker sent before its last
    restart are not counted.
    """
    with servers.connect() as mq:
        scan = mq.admin.describe_scan(scan_id)
    if not scan.served:
        silent = f"; not answered by {named('broker', scan.silent)}" if scan.silent else ""
        hint = "see: tinymq scan list; brokers forget the oldest scans, and all of them when they stop"
        raise NotFound(f"no broker knows scan {scan_id!r} (any more){silent}", hint=hint)
    if output == "json":
        print_json(_document(scan))
        return
    rows = [(s.topic, s.partition, s.broker, s.role, s.bytes, s.records, f"{s.last_s:.0f}s") for s in scan.served]
    print_table(["topic", "partition", "broker", "role", "bytes", "records", "last ago"], rows)
    say(f"{quantity(scan.bytes_by('follower'), 'byte')} by followers, {scan.bytes_by('leader')} by leaders")
    if scan.silent:
        say(f"{named('broker', scan.silent)} did not answer, and may also have served the scan")


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
