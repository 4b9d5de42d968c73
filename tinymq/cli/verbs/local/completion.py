"""`tinymq completion`: the script by which a shell completes verbs and options."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from tinymq.cli.common.output import print_text


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], /) -> None:
    """Print the completion script of a shell, which completes verbs, options and their choices.

    bash: tinymq completion bash > ~/.local/share/bash-completion/completions/tinymq

    zsh: tinymq completion zsh > a file _tinymq in a directory of $fpath

    fish: tinymq completion fish > ~/.config/fish/completions/tinymq.fish
    """
    from tinymq.cli.commands import app

    print_text(app.generate_completion(prog_name="tinymq", shell=shell))
