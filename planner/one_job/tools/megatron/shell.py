"""The words of the command that a shell script runs, without running anything.

Comments and line continuations are understood, variables and arrays that the script assigns are substituted, and `if`
is followed where its condition compares words that are known. What the script does not say (an environment variable,
`$1`) stays in the words as it is written, so that whoever needs its value can name it. Loops, functions and `case`
are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from planner.one_job.tools.megatron.expressions import evaluate_expression
from planner.one_job.tools.megatron.shell_text import ASSIGNMENT, Statement, Words, read_statements
from profiles.errors import InputError

_VARIABLE = re.compile(r"\$\{(?P<braced>\w+)(?:\[[@*]\])?(?::?-(?P<default>[^{}]*))?\}|\$(?P<plain>[A-Za-z_]\w*|\d)")
_ARITHMETIC = re.compile(r"\$\(\((?P<inside>[^()]*)\)\)")
_DECLARING = {"export", "local", "readonly", "declare"}
_LOOPS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_PLACES = {"then", "do"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words of the command, and sentences about what of the script was not read."""

    words: Words
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Block:
    """An `if` or a loop that is open. `reads`: whether its lines count (None: cannot be told); `taken`: whether a
    branch of the `if` was; `test`: its condition, while that is being read."""

    ends: str
    line: int
    reads: bool | None
    taken: bool | None = False
    test: list[Statement] | None = None


@dataclass(slots=True, kw_only=True)
class _Script:
    variables: dict[str, Words] = field(default_factory=dict)
    made_of: dict[str, set[str]] = field(default_factory=dict)
    unsure: dict[str, int] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    commands: list[tuple[Words, set[str]]] = field(default_factory=list)


def unknown_variable(word: str) -> str | None:
    """The first variable in `word` that nobody assigned, None if there is none.

    >>> unknown_variable("${SLURM_NNODES}"), unknown_variable("8")
    ('SLURM_NNODES', None)
    """
    found = _VARIABLE.search(word)
    if found is not None:
        return found["braced"] or found["plain"]
    return word if word.startswith(("$", "`")) else None


def read_command(text: str, *, where: str) -> Command:
    """The command of `text` that has the most options, of equals the last. A line that begins with an option goes on
    with the one before.

    InputError where a quote or a bracket is left open, or there is no command with an option.
    """
    script = _Script()
    for statement in read_statements(text, where=where):
        _read(statement, script)
    open_block = next((block for block in script.blocks), None)
    if open_block is not None:
        place = f"{where}, line {open_block.line}"
        raise InputError(where=place, found=f"a block without its {open_block.ends}", expected="its end")
    if not any(word.startswith("--") for words, _ in script.commands for word in words):
        raise InputError(where=where, found="no argument", expected="arguments such as --num-layers 32")
    words, used = max(reversed(script.commands), key=lambda command: sum(word.startswith("--") for word in command[0]))
    notes = tuple(
        f"{name} is changed in a block of {where} (line {script.unsure[name]}) that was not read"
        for name in sorted(_all_of(used, script.made_of) & set(script.unsure))
    )
    return Command(words=words, notes=notes)


def _all_of(names: set[str], made_of: dict[str, set[str]]) -> set[str]:
    """`names` and all variables that their values were made of."""
    known: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        known.add(name)
        left |= made_of.get(name, set()) - known
    return known


def _read(statement: Statement, script: _Script) -> None:
    words = statement.words
    if _follow_blocks(statement, script):
        return
    while words and words[0] in _PLACES | {"else", "!", "time"}:
        words = words[1:]
    while words and words[0] in _DECLARING:
        words = words[1:]
    reads = _reads(script)
    assigned = 0
    items = list(statement.items)
    for word in words:
        match = ASSIGNMENT.fullmatch(word)
        if match is None:
            break
        assigned += 1
        if reads is False:
            continue
        is_array = match["value"] == "" and bool(items)
        value = items.pop(0) if is_array else (match["value"],)
        if reads is None:
            script.unsure.setdefault(match["name"], statement.line)
        else:
            _assign(script, match["name"], value, append=bool(match["append"]), is_array=is_array)
    if words[assigned:] and reads:
        used: set[str] = set()
        expanded = tuple(part for word in words[assigned:] for part in _expand(word, script.variables, used))
        if expanded and expanded[0].startswith("-") and script.commands:
            before, known = script.commands.pop()
            expanded, used = (*before, *expanded), used | known
        script.commands.append((expanded, used))


def _reads(script: _Script) -> bool | None:
    """Whether a statement counts where the script is now; None: it cannot be told."""
    reads: bool | None = True
    for block in script.blocks:
        reads = _and(reads, block.reads)
    return reads


def _assign(script: _Script, name: str, value: Words, *, append: bool, is_array: bool) -> None:
    used: set[str] = set()
    if is_array:
        new = tuple(part for item in value for part in _expand(item, script.variables, used))
    else:
        new = (" ".join(_expand(value[0], script.variables, used)),)
    if append:
        old = script.variables.get(name, ())
        used |= script.made_of.get(name, set())
        new = (*old, *new) if is_array else ("".join((*old, *new)),)
    script.variables[name] = new
    script.made_of[name] = used


def _follow_blocks(statement: Statement, script: _Script) -> bool:
    """Open, turn and close blocks; True where the statement was one of those, or part of a condition."""
    words, blocks = statement.words, script.blocks
    head = words[0]
    testing = blocks[-1] if blocks and blocks[-1].test is not None else None
    if testing is not None and head != "then":
        testing.test = [*(testing.test or []), statement]
        return True
    if head == "if":
        blocks.append(_Block(ends="fi", line=statement.line, reads=False))
        blocks[-1].test = [Statement(line=statement.line, before="", words=words[1:])]
        return True
    if head == "then" and testing is not None:
        outcome = _condition(testing.test or [], script)
        testing.test = None
        testing.reads = _and(_not(testing.taken), outcome)
        testing.taken = _not(_and(_not(testing.taken), _not(outcome)))
        return len(words) == 1
    if head in ("elif", "else") and blocks and blocks[-1].ends == "fi":
        if head == "elif":
            blocks[-1].test = [Statement(line=statement.line, before="", words=words[1:])]
            return True
        blocks[-1].reads = _not(blocks[-1].taken)
        return len(words) == 1
    if head in _LOOPS or head == "function" or re.fullmatch(r"[\w.-]+\(\)", head):
        braces = head not in _LOOPS
        if braces and words[-1] != "{":
            return True  # the brace is on a line of its own
        blocks.append(_Block(ends="}" if braces else _LOOPS[head], line=statement.line, reads=None))
        return True
    if blocks and head == blocks[-1].ends:
        blocks.pop()
        return True
    return False


def _condition(test: list[Statement], script: _Script) -> bool | None:
    """What the condition of an `if` says; None where it rests on something unknown."""
    result: bool | None = None
    for number, statement in enumerate(test):
        found = _test(statement.words, script)
        if not number:
            result = found
        elif statement.before == "||":
            result = _not(_and(_not(result), _not(found)))
        elif statement.before == "&&":
            result = _and(result, found)
        else:
            return None
    return result


def _and(first: bool | None, second: bool | None) -> bool | None:
    """Kleene's: None is unknown."""
    return False if False in (first, second) else None if None in (first, second) else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _test(words: Words, script: _Script) -> bool | None:
    """`[ A = B ]`, `[[ A != B ]]`, `-z A` and the like."""
    if len(words) < 3 or (words[0], words[-1]) not in {("[", "]"), ("[[", "]]")}:
        return None
    inner = words[1:-1]
    negated = inner[0] == "!"
    known = [" ".join(_expand(word, script.variables, set())) for word in (inner[1:] if negated else inner)]
    if any(unknown_variable(word) for word in known):
        return None
    match known:
        case ["-z", word]:
            found = not word
        case ["-n", word]:
            found = bool(word)
        case [first, "=" | "==" | "-eq", second]:
            found = first == second
        case [first, "!=" | "-ne", second]:
            found = first != second
        case [first, "-gt" | "-ge" | "-lt" | "-le" as how, second] if first.isdigit() and second.isdigit():
            a, b = int(first), int(second)
            found = {"-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[how]
        case _:
            return None
    return found != negated


# Variables


def _expand(word: str, variables: dict[str, Words], used: set[str]) -> list[str]:
    """The words that `word` stands for, its variables substituted where they are known. Adds their names to `used`."""
    whole = _VARIABLE.fullmatch(word)
    if whole is not None:
        name = whole["braced"] or whole["plain"]
        used.add(name)
        if name in variables:
            return [part for item in variables[name] for part in _split(item)]
        if whole["default"] is not None:
            return _split(_substitute(whole["default"], variables, used))
        return [word]
    return _split(_substitute(word, variables, used))


def _substitute(word: str, variables: dict[str, Words], used: set[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        used.add(name)
        if name in variables:
            return " ".join(variables[name])
        return match[0] if match["default"] is None else _substitute(match["default"], variables, used)

    def sum_of(match: re.Match[str]) -> str:
        inside = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: " ".join(variables.get(name[0], (name[0],))), match[1])
        found = evaluate_expression(inside)
        return str(found) if isinstance(found, int) else match[0]

    return _ARITHMETIC.sub(sum_of, _VARIABLE.sub(value, word))


def _split(text: str) -> list[str]:
    """Options that a variable or a quoted word holds several words of, as the shell splits them."""
    if text.lstrip().startswith("-") and len(text.split()) > 1:
        return [part.strip("'\"") for part in text.split()]
    return [text] if text.strip() else []
