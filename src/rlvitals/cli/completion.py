"""`rlvitals completion SHELL`: prints a completion script for verbs, flags and paths, made from the verbs' parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rlvitals.cli.main import VERBS, verb_of
from rlvitals.errors import MissingDependency
from rlvitals.terminal import say

HOW = {
    "bash": 'eval "$(rlvitals completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(rlvitals completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "rlvitals completion fish | source      # in ~/.config/fish/config.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    for line in (f"# {HOW[arguments.shell]}", *SHELLS[arguments.shell](flags()).splitlines()):
        say(line)
    return 0


def flags() -> dict[str, dict[str, str]]:
    """For each verb, its long flags with their help up to the first semicolon."""
    found: dict[str, dict[str, str]] = {}
    for verb in VERBS:
        found[verb] = {}
        if verb == "completion":
            continue
        try:
            _, parser = verb_of(verb)
        except MissingDependency:  # its extra is not installed
            continue
        for action in parser._actions:
            text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).partition(";")[0]
            found[verb] |= {word: text for word in action.option_strings if word.startswith("--")}
    return found


def _bash(found: dict[str, dict[str, str]]) -> str:
    cases = "\n".join(f"        {verb}) words='{' '.join(words)}' ;;" for verb, words in found.items())
    return f"""_rlvitals() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=''
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{" ".join(found)}' -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "${{current:0:1}}" = - ]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}}
complete -o bashdefault -o default -F _rlvitals rlvitals"""


def _zsh(found: dict[str, dict[str, str]]) -> str:
    verbs = "\n".join(f"        {_quoted(f'{verb}:{VERBS[verb]}')}" for verb in found)
    cases = ""
    for verb, words in found.items():
        options = " ".join(_quoted(f"{flag}[{_plain(text)}]") for flag, text in words.items())
        cases += f"            {verb}) _arguments {options} '*:file:_files' ;;\n"
    return f"""_rlvitals() {{
    local -a verbs=(
{verbs}
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
    else
        local verb=$words[2]
        shift words; (( CURRENT-- ))
        case $verb in
{cases}        esac
    fi
}}
compdef _rlvitals rlvitals"""


def _fish(found: dict[str, dict[str, str]]) -> str:
    lines = [f"complete -c rlvitals -n __fish_use_subcommand -f -a {verb} -d {_quoted(VERBS[verb])}" for verb in found]
    for verb, words in found.items():
        lines += [
            f"complete -c rlvitals -n '__fish_seen_subcommand_from {verb}' -l {flag[2:]} -d {_quoted(_plain(text))}"
            for flag, text in words.items()
        ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A help text as one line, without characters that have a meaning in the shells."""
    return " ".join(text.replace("%%", "%").translate(str.maketrans("[]:`$\\", "()  - ")).split())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[dict[str, dict[str, str]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
