"""`tinymq cluster feature-level`: show which features the brokers of a cluster may use, and hold that level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.quantity import named
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.client.admin.feature_level import FeatureLevel

app = App(
    name="feature-level",
    help="""Show the feature level that the brokers may use, and hold it during an upgrade: show, hold, release.

Each build of tinymq knows features up to a level. A cluster uses them up to the lowest level that any of its members
announces. The members are every voter, every registered broker, and every broker that holds a replica. A broker that is
down counts with the level that it announced last. The cluster's level rises by itself once the last member runs the
newer build, and it never falls: from then on, no older build can take part, so you cannot go back to it.

To be able to go back, hold the level before the last broker is upgraded, and release it when you are sure.""",
)

MARKS = {True: "yes", False: "no"}


@app.command
def show(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show the cluster's level, what each broker knows and announces, and which brokers keep the level down."""
    with servers.connect() as mq:
        level_report = mq.admin.feature_level(timeout=servers.left_s)
    _print(level_report, output)


@app.command
def hold(
    *,
    level: Annotated[int, Parameter(help="The highest level to announce; 0 is the cluster's current level.")] = 0,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Keep the cluster's level from rising until `release`, even when brokers restart.

    From now on, every broker that answers and knows feature levels announces no higher level than this. One such broker
    is enough to hold the cluster. Hold the level after the first broker runs the new build, and before the last one
    does.
    """
    with servers.connect() as mq:
        level_report = mq.admin.hold_feature_level(level, timeout=servers.left_s)
    _print(level_report, output)


@app.command
def release(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """End a hold on every broker that answers.

    If all members know a higher level, the cluster's level rises within moments.
    """
    with servers.connect() as mq:
        level_report = mq.admin.release_feature_level(timeout=servers.left_s)
    _print(level_report, output)


def describe(level_report: FeatureLevel) -> dict[str, Any]:
    """Return the document that is printed as JSON. Pure."""
    return {
        "feature_level": level_report.level,
        "waits_for": list(level_report.waits_for),
        "members": [
            {
                "broker": member.broker_id,
                "knows": member.known,
                "announces": member.announced,
                "held_at": member.held or None,
                "registered": member.registered,
                "voter": member.voter,
                "replicas": member.replicas,
            }
            for member in level_report.members
        ],
        "silent": {str(broker): why for broker, why in level_report.silent.items()},
    }


def _print(level_report: FeatureLevel, output: Output) -> None:
    if output == "json":
        print_json(describe(level_report))
        return
    say(f"the cluster is at feature level {level_report.level}")
    rows = [
        (m.broker_id, m.known, m.announced, m.held or None, MARKS[m.registered], MARKS[m.voter], m.replicas)
        for m in level_report.members
    ]
    print_table(["broker", "knows", "announces", "held at", "registered", "voter", "replicas"], rows)
    for broker, why in sorted(level_report.silent.items()):
        say(f"broker {broker} does not answer: {why}")
    if level_report.can_rise:
        held = [str(member.broker_id) for member in level_report.members if member.held]
        why = f", held by {named('broker', held)}: tinymq cluster feature-level release" if held else ""
        say(
            f"the level rises when {named('broker', level_report.waits_for)} can use a higher level{why}"
            if level_report.waits_for
            else "the level is about to rise"
        )
