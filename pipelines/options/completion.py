"""`streamveil completion SHELL`: a script that completes commands, options and their values.

It is made from the declarations of the options, so it knows what the help lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import shorten

from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.option import Option

_BASH = """\
_streamveil() {{
  local word=$2 command=${{COMP_WORDS[1]}} option= before= flags= values= found
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    return
  fi
  if [[ $word == --*=* ]]; then  # zsh does not split a word at =
    option=${{word%%=*}} before=$option= word=${{word#*=}}
  elif [[ $word == = ]]; then
    option=$3 word=
  elif [[ $3 == = ]]; then
    option=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $word != -* && $3 == -* ]]; then
    option=$3
  fi
  case $command in
{flags}
  esac
  case $command$option in
{values}
  esac
  COMPREPLY=()
  if [[ $option ]]; then
    for found in $(compgen -W "$values" -- "$word"); do COMPREPLY+=("$before$found"); done
  else
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
    [[ ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace 2>/dev/null
  fi
}}
complete -o default -F _streamveil streamveil
"""


def script(shell: str) -> str:
    """The script for a shell: one of :data:`SHELLS`.

    Example:
        >>> "complete -o default -F _streamveil streamveil" in script("bash")
        True
    """
    return SHELLS[shell]()


def _command_names() -> str:
    return " ".join([*COMMANDS, "completion", "help"])


def _bash(before_value: str = "=") -> str:
    flags, values = [], []
    for name, command in COMMANDS.items():
        texts = []
        for option in command.options.values():
            texts.append(f"--{option.name}{before_value if _needs_value(option) else ''}")
            if option.choices:
                choices = " ".join(option.choices)
                values.append(f'    {name}--{option.name}) values="{choices}" ;;')
        flags.append(f'    {name}) flags="{" ".join(texts)} --help" ;;')
    return _BASH.format(
        commands=_command_names(),
        flags="\n".join(flags),
        values="\n".join([*values, f'    completion) flags="{" ".join(SHELLS)}" ;;']),
    )


def _needs_value(option: Option) -> bool:
    return not option.bare and option.alone is None


def _zsh() -> str:
    load = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit"
    # Its emulation of bash ends every word with a space, so values follow without a =.
    return f"{load}\n{_bash(before_value='')}"


def _fish() -> str:
    commands = _quoted(_command_names())
    lines = [f"complete -c streamveil -n __fish_use_subcommand -f -a {commands}"]
    for name, command in COMMANDS.items():
        begin = f"complete -c streamveil -n '__fish_seen_subcommand_from {name}'"
        for option in command.options.values():
            about = _quoted(option.brief or shorten(option.meaning(name), 80, placeholder="…"))
            line = f"{begin} -l {option.name} -d {about}"
            if option.choices:
                line += f" -f -a {_quoted(' '.join(option.choices))}"
            lines.append(line + (" -r" if _needs_value(option) else ""))
    shells = _quoted(" ".join(SHELLS))
    lines.append(
        f"complete -c streamveil -n '__fish_seen_subcommand_from completion' -f -a {shells}"
    )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text in the single quotes of fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Mapping[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""By name, what makes their script."""
