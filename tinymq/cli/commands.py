"""The verbs of the `tinymq` command. A verb's module is imported when the verb is used."""

from __future__ import annotations

from cyclopts import App, Parameter

app = App(
    name="tinymq",
    help="A replicated, partitioned message log.",
    help_flags=["--help", "-h"],
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # `run` handles Ctrl-C
    default_parameter=Parameter(negative_iterable=()),
)
app.command("tinymq.cli.dev:app", name="dev", help="A local cluster of plain processes: up, status, kill, start, down.")
app.command("tinymq.cli.broker:broker", name="broker", help="Run one broker until SIGTERM or SIGINT.")
app.command("tinymq.cli.topic:app", name="topic", help="Create, describe, alter, trim and delete topics.")
app.command("tinymq.cli.produce:produce", name="produce", help="Send lines from standard input or files.")
app.command("tinymq.cli.consume:consume", name="consume", help="Print records.")
app.command("tinymq.cli.channel:app", name="channel", help="List, move and delete the channels of a topic.")
app.command("tinymq.cli.queue:app", name="queue", help="Push to a partition, and poll it through a channel, by hand.")
app.command("tinymq.cli.hold:app", name="hold", help="Keep records from being removed for a while.")
app.command("tinymq.cli.scan:app", name="scan", help="See which replicas served a scan, such as a Spark query.")
app.command("tinymq.cli.cluster:app", name="cluster", help="Form a cluster, show its state, recover it.")
app.command("tinymq.cli.log:app", name="log", help="Inspect segment files offline.")
