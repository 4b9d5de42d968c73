"""A run's folder: history.jsonl, run.json, and the report that both give (report/).

history.jsonl     every call, fault, leader and replica (history.py)
run.json          seed, command, versions, machine, faults by kind, measures, anomalies, skipped checkers with reasons
report.html, summary.json
cluster/          brokers' settings and log files; their data, too, if something was wrong
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tinymq_chaos.checkers.common.anomaly import Anomaly
from tinymq_chaos.history import Outcome
from tinymq_chaos.real.processes.setup import TOXIPROXY_VERSION
from tinymq_chaos.real.run.run import RunResult
from tinymq_chaos.real.system.target import Target
from tinymq_chaos.real.system.verdict import SPEED, not_judged

HISTORY = "history.jsonl"
RUN = "run.json"
PACKAGES = ("tinymq", "grpcio", "pyarrow", "pysyncobj", "toxiproxy-python")


def write(folder: Path, result: RunResult, target: Target, command: str, began: str) -> None:
    """Write both files. `command` repeats the plan; `began` is the start, for people."""
    with (folder / HISTORY).open("w") as file:
        file.writelines(f"{line}\n" for line in result.history.lines())
    (folder / RUN).write_text(json.dumps(values(result, target, command, began), indent=1) + "\n")


def values(result: RunResult, target: Target, command: str, began: str) -> dict[str, Any]:
    """Return the content of run.json."""
    history, plan = result.history, result.plan
    return {
        "seed": plan.seed,
        "command": command,
        "target": target.name,
        "versions": {**versions(), target.name: target.version},
        "machine": machine(),
        "nodes": len(target.brokers),
        "began": began,
        "interrupted": result.interrupted,
        "judged": result.judged,
        "not_tested": untested(result),
        "faults": dict(result.faults),
        "never_happened": list(result.never),
        "calls": dict(Counter(call.outcome.value for call in history.calls)),
        "records_acknowledged": result.acknowledged,
        "clients": dict(result.clients),
        "terms_seen": len(history.leaders),
        "measures": {
            "healed_s": round(result.healed_s, 3),
            "harness_late_s_max": round(result.lag_s, 3),
            "proxy_restarts": result.proxy_restarts,
            "tasks_for_each_processor_max": round(result.crowd, 1),
            "tasks_for_each_processor_max_after_faults": round(result.crowd_calm, 1),
            "checked_s": round(result.checked_s, 3),
            "harness_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        },
        "effects": [{"kind": s.kind, "what": s.what, "effect": s.effect} for s in history.faults],
        "slack": asdict(result.slack),
        "slack_times": round(result.leniency, 2),
        "not_judged": dict(not_judged(result.slack)),
        "notes": list(result.notes),
        "anomalies": [asdict(a) if isinstance(a, Anomaly) else a for a in result.anomalies],
    }


def versions() -> Mapping[str, str]:
    found = {"python": platform.python_version(), "toxiproxy": TOXIPROXY_VERSION}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # it is not what the run tests
            continue
    return found


def machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"cpus": os.cpu_count(), "system": sys.platform, "kind": platform.machine(), "load": round(load, 1)}


def outcome_in_words(result: RunResult) -> str:
    """Return the last lines of a run's progress."""
    ended = Counter(call.outcome for call in result.history.calls)
    failed = f"{ended[Outcome.FAILED]} failed, {ended[Outcome.UNKNOWN]} with an unknown outcome"
    lines = [
        f"{result.acknowledged} records acknowledged; {len(result.history.calls)} calls, {failed}",
        f"faults: {', '.join(f'{kind} {count}' for kind, count in result.faults.items()) or 'none'}",
        f"clients: {', '.join(f'{kind} {count}' for kind, count in sorted(result.clients.items())) or 'none'}",
    ]
    lines += [f"never possible: {', '.join(result.never)}"] if result.never else []
    lines += [f"note: {note}" for note in result.notes]
    if result.leniency > 1.0:
        busy = f"the machine was busy ({result.crowd:.1f} tasks for each processor)"
        lines.append(f"judged with slack: {busy}; times were extended by a factor of {result.leniency:.1f}")
    if not result.slack.fair:
        lines.append(
            f"NOT JUDGED {', '.join(SPEED)}: on a busy machine, a slow cluster cannot be told from a slow machine"
        )
    lines += ["interrupted before its time"] if result.interrupted else []
    lines += [f"NOT TESTED {what}" for what in untested(result)]
    lines += [] if result.judged else ["NOT JUDGED: the run ended before its history was checked"]
    lines += [f"ANOMALY {anomaly}" for anomaly in result.anomalies] or ["no anomalies"] * result.judged
    return "\n".join(lines)


def untested(result: RunResult) -> list[str]:
    """Return what was requested and not tested."""
    wanted = result.plan.faults
    if wanted is None and result.plan.episodes is None and not result.faults:
        return ["faults: none happened"]
    found = [f"{kind}: it never happened" for kind in wanted or () if not result.faults.get(kind)]
    found += [
        f"{kind}: it did nothing that could be seen" for kind in wanted or ()
        if result.faults.get(kind) and result.idle.get(kind) == result.faults[kind]
    ]  # fmt: skip
    if not any(call.outcome is Outcome.OK for call in result.history.calls):
        found.append("workloads: no call was answered")
    elif any(result.history.of("send")) and not result.acknowledged:
        found.append("writes: no record was acknowledged")
    return found


def exit_of(result: RunResult) -> tuple[int, str]:
    """Return the exit code of a run, and its reason in words."""
    if result.anomalies:
        return 1, "anomalies"
    if result.interrupted:
        return 130, f"interrupted, and {'nothing was wrong until then' if result.judged else 'not judged'}"
    if untested(result):
        return 1, "something that was asked for was not tested"
    return 0, "nothing was wrong"


def remove_data(target: Target) -> None:
    """Remove the data of stopped brokers: the run found nothing to look for."""
    for broker in target.brokers:
        shutil.rmtree(target.data(broker), ignore_errors=not target.data(broker).exists())
