"""`pulsify completion`: the script that makes a shell complete commands, options and files."""

from __future__ import annotations

import click

VARIABLE = "_PULSIFY_COMPLETE"
HOW = """\b
bash   pulsify completion bash >> ~/.bashrc
zsh    pulsify completion zsh >> ~/.zshrc
fish   pulsify completion fish > ~/.config/fish/completions/pulsify.fish
"""


@click.command(short_help="The script that makes a shell complete pulsify's commands.", epilog=HOW)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    command = click.get_current_context().find_root().command
    click.echo(found(command, {}, "pulsify", VARIABLE).source())
