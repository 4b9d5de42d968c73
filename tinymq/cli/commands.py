"""The verbs of the `tinymq` command. A verb's module is imported when the verb is used."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(
    name="tinymq",
    help="A replicated, partitioned message log.",
    help_flags=["--help", "-h"],
    version_flags=["--version", "-V"],
    suppress_keyboard_interrupt=False,  # `run` handles Ctrl-C
    default_parameter=Parameter(negative_iterable=()),
)
app.command(
    "tinymq.cli.verbs.dev:app",
    name="dev",
    help="Run a local cluster of plain processes: up, add, status, kill, start, down.",
)
app.command("tinymq.cli.verbs.broker:app", name="broker", help="Run one broker until SIGTERM or SIGINT.")
app.command("tinymq.cli.verbs.topic:app", name="topic", help="Create, list, describe, alter, trim and delete topics.")
app.command("tinymq.cli.verbs.produce:app", name="produce", help="Send lines from standard input or files.")
app.command("tinymq.cli.verbs.consume:app", name="consume", help="Print records.")
app.command("tinymq.cli.verbs.schedule:app", name="schedule", help="List and cancel delayed records.")
app.command(
    "tinymq.cli.verbs.transaction:app", name="transaction", help="List and describe transactions, and roll them back."
)
app.command(
    "tinymq.cli.verbs.half.half:app", name="half", help="List and describe half messages, and decide about them."
)
app.command("tinymq.cli.verbs.channel:app", name="channel", help="List, move and delete the channels of a topic.")
app.command(
    "tinymq.cli.verbs.group:app", name="group", help="Make, list, describe, alter, move and delete consumer groups."
)
app.command("tinymq.cli.verbs.queues.worker:app", name="worker", help="Run a program for each record of a queue group.")
app.command("tinymq.cli.verbs.letters.dlq:app", name="dlq", help="List, show, replay, redrive and purge dead letters.")
app.command("tinymq.cli.verbs.letters.why:app", name="why", help="Show what became of a record in each group.")
app.command(
    "tinymq.cli.verbs.queues.queue:app",
    name="queue",
    help="Use a partition as a queue from the shell: push, poll, peek.",
)
app.command(
    "tinymq.cli.verbs.outbox.outbox:app", name="outbox", help="Send what applications have written in their database."
)
app.command("tinymq.cli.verbs.hold:app", name="hold", help="Keep records from being removed for a while.")
app.command("tinymq.cli.verbs.scan:app", name="scan", help="Show which replicas served a scan, such as a Spark query.")
app.command("tinymq.cli.verbs.access.user:app", name="user", help="Make users, roles and tokens, and revoke them.")
app.command("tinymq.cli.verbs.access.acl:app", name="acl", help="Say what users may do: grant, revoke, list, test.")
app.command("tinymq.cli.verbs.access.quota:app", name="quota", help="Bound what users may use: set, list, delete.")
app.command(
    "tinymq.cli.verbs.access.cert:app", name="cert", help="Make certificates for TLS: an authority, brokers, users."
)
app.command("tinymq.cli.verbs.access.auth:app", name="auth", help="Check who calls, or do not: enable, disable.")
app.command("tinymq.cli.verbs.access.whoami:app", name="whoami", help="Show who the brokers take you for.")
app.command("tinymq.cli.verbs.cluster:app", name="cluster", help="Form a cluster, show its state, recover it.")
app.command(
    "tinymq.cli.verbs.local.context:app", name="context", help="Name clusters, and choose the one that commands use."
)
app.command("tinymq.cli.verbs.local.doctor:app", name="doctor", help="Look at this machine and the brokers.")
app.command("tinymq.cli.verbs.local.bench:app", name="bench", help="Measure a cluster: produce, consume, e2e.")
app.command("tinymq.cli.verbs.log:app", name="log", help="Inspect segment files offline.")


@app.command
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], /) -> None:
    """Print the script by which a shell completes verbs, options and their choices.

    bash: tinymq completion bash > ~/.local/share/bash-completion/completions/tinymq

    zsh: tinymq completion zsh > a file _tinymq in a directory of $fpath

    fish: tinymq completion fish > ~/.config/fish/completions/tinymq.fish
    """
    from tinymq.cli.common.output import print_text

    print_text(app.generate_completion(prog_name="tinymq", shell=shell))
