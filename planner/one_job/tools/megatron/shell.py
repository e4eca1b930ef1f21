"""The words of the command that a shell script runs, without running anything.

Comments and line continuations are understood, variables and arrays that the script assigns are substituted, and `if`
is followed where its condition compares words that are known. What the script does not say (an environment variable,
`$1`) stays in the words as it is written, so that whoever needs its value can name it. Loops, functions and `case`
are not read.
"""

from __future__ import annotations

import re
from dataclasses import field

from planner.one_job.tools.megatron.expressions import evaluate_expression
from planner.one_job.tools.megatron.shell_text import ASSIGNMENT, Statement, Words, read_statements
from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.records import dataclass

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
    variable = _VARIABLE.search(word)
    if variable is not None:
        return variable["braced"] or variable["plain"]
    return word if word.startswith(("$", "`")) else None


def read_command(text: str, *, where: str) -> Command:
    """The command of `text` that has the most options, of equals the last. A line that begins with an option goes on
    with the one before.

    InputError where a quote or a bracket is left open, or there is no command with an option.
    """
    script = _Script()
    for statement in read_statements(text, where=where):
        try:
            _read(statement, script)
        except InputError as error:
            place = f"{where}, line {statement.line}"
            raise InputError(where=place, key=error.key, found=error.found, expected=error.expected) from None
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
    reached: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        reached.add(name)
        left |= made_of.get(name, set()) - reached
    return reached


def _read(statement: Statement, script: _Script) -> None:
    words = statement.words
    if _follow_blocks(statement, script):
        return
    while words and words[0] in _PLACES | {"else", "!", "time"}:
        words = words[1:]
    while words and words[0] in _DECLARING:
        words = words[1:]
    assigned = _read_assignments(statement, words, script)
    if words[assigned:] and _reads(script):
        used: set[str] = set()
        expanded = _expand_all(words[assigned:], script.variables, used)
        if expanded and expanded[0].startswith("-") and script.commands:
            before, used_before = script.commands.pop()
            expanded, used = (*before, *expanded), used | used_before
        script.commands.append((expanded, used))


def _read_assignments(statement: Statement, words: Words, script: _Script) -> int:
    """How many assignments `words` begin with. They are made where the statement counts."""
    reads = _reads(script)
    items = list(statement.items)
    for assigned, word in enumerate(words):
        match = ASSIGNMENT.fullmatch(word)
        if match is None:
            return assigned
        if reads is False:
            continue
        is_array = match["value"] == "" and bool(items)
        value = items.pop(0) if is_array else (match["value"],)
        if reads is None:
            script.unsure.setdefault(match["name"], statement.line)
        else:
            _assign(script, match["name"], value, append=bool(match["append"]), is_array=is_array)
    return len(words)


def _reads(script: _Script) -> bool | None:
    """Whether a statement counts where the script is now; None: it cannot be told."""
    reads: bool | None = True
    for block in script.blocks:
        reads = _and(reads, block.reads)
    return reads


def _assign(script: _Script, name: str, value: Words, *, append: bool, is_array: bool) -> None:
    used: set[str] = set()
    if is_array:
        new = _expand_all(value, script.variables, used)
    else:
        new = (" ".join(_expand(value[0], script.variables, used)),)
    if append:
        old = script.variables.get(name, ())
        used |= script.made_of.get(name, set())
        new = (*old, *new) if is_array else ("".join((*old, *new)),)
    LIMITS.line_bytes.check(sum(map(len, new)), where="variable", key=name)
    script.variables[name] = new
    script.made_of[name] = used


def _follow_blocks(statement: Statement, script: _Script) -> bool:
    """Open, turn and close blocks; True where the statement was one of those, or part of a condition."""
    words, blocks = statement.words, script.blocks
    head = words[0]
    block = blocks[-1] if blocks else None
    if block is not None and block.test is not None and head != "then":
        block.test.append(statement)
        return True
    if head == "if":
        test = [Statement(line=statement.line, before="", words=words[1:])]
        blocks.append(_Block(ends="fi", line=statement.line, reads=False, test=test))
        return True
    if block is not None and head in ("then", "elif", "else") and _turn(block, statement, script):
        return head == "elif" or len(words) == 1
    if head in _LOOPS or head == "function" or re.fullmatch(r"[\w.-]+\(\)", head):
        braces = head not in _LOOPS
        if not braces or words[-1] == "{":  # else the brace is on a line of its own
            blocks.append(_Block(ends="}" if braces else _LOOPS[head], line=statement.line, reads=None))
        return True
    if block is not None and head == block.ends:
        blocks.pop()
        return True
    return False


def _turn(block: _Block, statement: Statement, script: _Script) -> bool:
    """Enter a branch of an `if`; False where the block has none that the statement could begin."""
    head, *words = statement.words
    if head == "then":
        if block.test is None:
            return False
        outcome = _condition(block.test, script)
        block.test = None
        block.reads = _and(_not(block.taken), outcome)
        block.taken = _not(_and(_not(block.taken), _not(outcome)))
    elif block.ends != "fi":
        return False
    elif head == "elif":
        block.test = [Statement(line=statement.line, before="", words=tuple(words))]
    else:
        block.reads = _not(block.taken)
    return True


def _condition(test: list[Statement], script: _Script) -> bool | None:
    """What the condition of an `if` says; None where it rests on something unknown."""
    result: bool | None = None
    for number, statement in enumerate(test):
        outcome = _test(statement.words, script)
        if not number:
            result = outcome
        elif statement.before == "||":
            result = _not(_and(_not(result), _not(outcome)))
        elif statement.before == "&&":
            result = _and(result, outcome)
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
    operands = [" ".join(_expand(word, script.variables, set())) for word in (inner[1:] if negated else inner)]
    if any(unknown_variable(word) for word in operands):
        return None
    match operands:
        case ["-z", word]:
            holds = not word
        case ["-n", word]:
            holds = bool(word)
        case [first, "=" | "==" | "-eq", second]:
            holds = first == second
        case [first, "!=" | "-ne", second]:
            holds = first != second
        case [first, "-gt" | "-ge" | "-lt" | "-le" as how, second] if first.isdigit() and second.isdigit():
            a, b = int(first), int(second)
            holds = {"-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[how]
        case _:
            return None
    return holds != negated


# Variables


def _expand_all(words: Words, variables: dict[str, Words], used: set[str]) -> Words:
    """The words that `words` stand for. Raise InputError where they are more than a line holds."""
    expanded: list[str] = []
    size = 0
    for word in words:
        parts = _expand(word, variables, used)
        size += sum(map(len, parts)) + len(parts)
        LIMITS.line_bytes.check(size, where="words", key=word[:40])
        expanded += parts
    return tuple(expanded)


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
    size = 0

    def value(match: re.Match[str]) -> str:
        nonlocal size
        name = match["braced"] or match["plain"]
        used.add(name)
        if name in variables:
            text = " ".join(variables[name])
            size += len(text)
            LIMITS.line_bytes.check(size, where="word", key=name)
            return text
        return match[0] if match["default"] is None else _substitute(match["default"], variables, used)

    def sum_of(match: re.Match[str]) -> str:
        inside = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: " ".join(variables.get(name[0], (name[0],))), match[1])
        total = evaluate_expression(inside)
        return str(total) if isinstance(total, int) else match[0]

    return _ARITHMETIC.sub(sum_of, _VARIABLE.sub(value, word))


def _split(text: str) -> list[str]:
    """Options that a variable or a quoted word holds several words of, as the shell splits them."""
    if text.lstrip().startswith("-") and len(text.split()) > 1:
        return [part.strip("'\"") for part in text.split()]
    return [text] if text.strip() else []
