"""The page for people: its content, that it loads nothing from elsewhere, and that names stay text."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.chaos.real.reported import TOPIC, Tape, steady
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import Outcome
from tinymq_chaos.real.report import write_comparison, write_report
from tinymq_chaos.real.report.over_time import PARTITIONS_MAX, PARTITIONS_SHOWN

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&\u202e\x00\ud800"""
VOID = {"meta", "link", "img", "br", "hr", "input"}
LOADS = {"src", "href", "xlink:href", "action", "formaction", "data", "poster", "srcset"}


class Page(HTMLParser):
    """A page as a browser parses it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join("".join(self.words).split())

    def count(self, tag: str, style: str = "") -> int:
        return sum(name == tag and style in (attrs.get("class") or "").split() for name, attrs in self.tags)

    @property
    def sections(self) -> list[str | None]:
        return [attrs.get("id") for tag, attrs in self.tags if tag == "section"]


def read(path: Path) -> Page:
    """Parse a page, and check what holds for every page."""
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.open, "every element ends"
    for tag, attrs in page.tags:
        assert tag not in ("img", "iframe", "link", "object", "embed", "base")
        assert not [key for key in attrs if key.startswith("on")], tag
        for key in LOADS & attrs.keys():
            assert (attrs[key] or "").startswith("#"), (tag, key, attrs[key])
    assert not re.search(r"(?i)https?://|@import|url\(|//cdn", page.text)
    assert "default-src 'none'" in page.text
    return page


def broken() -> Tape:
    tape = steady(10)
    tape.fault("kill_leader", "broker 1", 3.0, 4.0)
    tape.fault("latency", "50 ms everywhere", 6.0, None)
    tape.led(0.0, 1, 1)
    tape.led(3.6, 2, 2)
    lost = tape.send(9.0, 9.01)
    tape.send(9.2, 9.4, Outcome.UNKNOWN)
    poll = tape.history.invoke("reader 1", "poll", 99.0, reader="reader 1", topic=TOPIC, replica="leader")
    poll.ok([[0, 100, [lost]]])
    return tape


def test_a_whole_page(tmp_path: Path) -> None:
    anomaly = asdict(
        Anomaly(AnomalyKind.DIRTY_READ, "shown, and taken back", (TOPIC, 0), ("p-100",), (100,), ("reader 1",))
    )
    folder = broken().keep(
        tmp_path, seed=7, command="make chaos SEED=7", target="tinymq", nodes=3, versions={"tinymq": "0.1.0"},
        anomalies=[anomaly, "broker 3 did not stop"], not_judged={"early_reads": "nobody saw"},
    )  # fmt: skip
    page = read(write_report(folder))
    assert page.sections == ["time", "anomalies", "faults", "calls", "run"]
    for words in (
        "Records were lost", "1 of 101 acknowledged records", "make chaos SEED=7", "tinymq 0.1.0", "kill_leader",
        "50 ms everywhere", "did not end", "dirty read in orders#00ff/0: shown, and taken back",
        "broker 3 did not stop", "reader 1", "early_reads", "nobody saw",
    ):  # fmt: skip
        assert words in page.said, words
    assert page.count("details", "anomaly") == 1
    assert "[[0, 100, 'p-100']]" in page.said, "what the poll was shown"
    assert "not there" in page.said, "no replica has the record"
    assert page.count("span", "fault") == 2
    assert page.count("span", "broker-1") >= 1
    assert page.count("path", "records") == page.count("path", "p50") == page.count("path", "p99") == 1
    assert page.count("button", "show") == 2


def test_a_page_of_a_run_in_which_all_is_well(tmp_path: Path) -> None:
    page = read(write_report(steady(10).keep(tmp_path, anomalies=[])))
    assert "Nothing was lost All 100 acknowledged records are there" in page.said.replace("lostAll", "lost All")
    assert "No faults were done." in page.said
    assert "None: the checkers went through 100 calls and the final state of 3 replicas." in page.said


@pytest.mark.parametrize("calls", [False, True])
def test_a_page_of_an_empty_run(tmp_path: Path, calls: bool) -> None:
    tape = Tape()
    if calls:
        tape.send(0.0, 0.1, Outcome.FAILED)
    page = read(write_report(tape.keep(tmp_path, anomalies=[])))
    assert "Nothing was tested" in page.said
    assert page.sections == ["time", "anomalies", "faults", "calls", "run"]


def test_a_page_does_not_claim_that_nothing_was_lost_without_a_check(tmp_path: Path) -> None:
    tape = Tape()
    tape.send(0.0, 0.1)
    page = read(write_report(tape.keep(tmp_path, anomalies=[])))
    assert "Nothing was lost" not in page.said
    assert "final state was not read" in page.said


def test_a_page_without_a_verdict_or_a_test_claims_nothing(tmp_path: Path) -> None:
    unjudged = read(write_report(steady(10).keep(tmp_path / "a", anomalies=[], judged=False, interrupted=True)))
    assert "Not judged" in unjudged.said
    assert "Not judged: the run ended before the checkers ran." in unjudged.said
    untested = read(
        write_report(steady(10).keep(tmp_path / "b", anomalies=[], not_tested=["pause: it never happened"]))
    )
    assert "But the run left something untested: pause: it never happened." in untested.said
    assert not any("Nothing was lost" in page.said for page in (unjudged, untested))
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["judged"] is False


def test_names_stay_text_wherever_they_come_from(tmp_path: Path) -> None:
    tape = Tape()
    topic = f"{HOSTILE}#00ff"
    record = tape.send(0.0, 0.1, topic=topic)
    tape.history.calls[0].process = HOSTILE
    tape.history.calls[0].args["producer"] = HOSTILE
    tape.led(0.0, 1, 1, topic)
    tape.fault(HOSTILE, HOSTILE, 0.0, 1.0)
    tape.replicas([HOSTILE], topic=topic)
    anomaly = asdict(
        Anomaly(
            AnomalyKind.LOST_WRITE,
            HOSTILE,
            (topic, 0),
            records=(record, HOSTILE),
            offsets=(1,),
            processes=(HOSTILE,),
            times_s=(0.1,),
            brokers=(1,),
        )
    )
    said = dict.fromkeys(("target", "command", "machine", "seed", "nodes", "notes"), HOSTILE)
    folder = tape.keep(tmp_path / "a", anomalies=[anomaly, HOSTILE], versions={HOSTILE: HOSTILE}, **said)
    for path in (write_report(folder), write_comparison(folder, folder)):
        page = read(path)
        assert "<img" in page.said, "it is shown as what it is"
        scripts = [attrs for tag, attrs in page.tags if tag == "script"]
        assert scripts == [{"type": "application/json", "id": "values"}, {}]
        values = re.search(r'id="values">(.*?)</script>', page.text, re.DOTALL)
        assert values is not None
        assert json.loads(values[1])["series"]


def test_many_partitions_and_faults_keep_the_page_small(tmp_path: Path) -> None:
    tape = steady(600)
    for i in range(200):
        tape.led(i / 10, 1, 1 + i % 9, f"topic-{i:03}-{'x' * 200}#{i:04x}")
        tape.fault("pause", f"broker {i}", i * 3.0, i * 3.0 + 2)
    path = write_report(tape.keep(tmp_path, anomalies=[]))
    page = read(path)
    assert path.stat().st_size < 3_000_000
    assert page.count("div", "leader") == PARTITIONS_MAX
    assert (
        f"{PARTITIONS_MAX - PARTITIONS_SHOWN} more partitions (and {200 - PARTITIONS_MAX} that are not shown)"
        in page.said
    )
    assert page.count("span", "fault") == 200


def test_a_comparison(tmp_path: Path) -> None:
    old, new = steady(10).keep(tmp_path / "old"), steady(20, but=(5, 9)).keep(tmp_path / "new")
    page = read(write_comparison(new, old))
    assert page.sections == ["figures", "time", "run-before", "run-after"]
    assert page.count("path", "before") == page.count("path", "after") == 2
    cells = [word.strip() for word in page.words if word.strip()]
    at = cells.index("Longest silence")
    assert cells[at + 1 : at + 5] == ["0.01 s", "4 s", "400.00", "worse"]
