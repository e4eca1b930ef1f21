"""The text of a shell script as statements: words with their quotes taken off, and the separators between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiles.errors import InputError
from profiles.records import dataclass

Words = tuple[str, ...]

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=(?P<value>.*)", re.DOTALL)

_SEPARATORS = ("&&", "||", "\n", ";", "|", "&")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Words up to a separator, and the separator before them. An array's assignment has its items in `items`."""

    line: int
    before: str
    words: Words
    items: tuple[Words, ...] = ()


def read_statements(text: str, *, where: str) -> Iterator[Statement]:
    """The statements of `text`, none of them empty. InputError, with its line, for a quote or a bracket left open."""
    reader = _Reader(text=text, where=where)
    while (statement := reader.statement()) is not None:
        if statement.words or statement.items:
            yield statement


@dataclass(slots=True, kw_only=True)
class _Reader:
    text: str
    where: str
    at: int = 0
    line: int = 1
    before: str = "\n"

    def statement(self) -> Statement | None:
        """The next statement, empty between two separators; None at the end."""
        if self.at >= len(self.text):
            return None
        words: list[str] = []
        items: tuple[Words, ...] = ()
        first, before = self.line, self.before
        while self.at < len(self.text):
            separator = next((mark for mark in _SEPARATORS if self.text.startswith(mark, self.at)), None)
            if separator is not None:
                self._skip(len(separator))
                self.before = separator
                if separator == "\n":
                    self._skip_document(words)
                break
            if self._blank():
                continue
            if not words:
                first = self.line
            word = self._word()
            if ASSIGNMENT.fullmatch(word) and word.endswith("=") and self.text.startswith("(", self.at):
                items = (*items, self._array())
            words.append(word)
        return Statement(line=first, before=before, words=tuple(words), items=items)

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _skip_document(self, words: list[str]) -> None:
        """Skip the lines that `<<WORD` feeds to the command that just ended."""
        for word in words:
            if (match := re.fullmatch(r"<<-?(\w+)", word)) is not None:
                end = re.compile(rf"^\s*{match[1]}[ \t]*$", re.MULTILINE).search(self.text, self.at)
                self._skip((len(self.text) if end is None else end.end()) - self.at)

    def _blank(self) -> bool:
        """Skip a space, a continued line or a comment, if there is one."""
        if self.text[self.at] in " \t\r":
            self._skip(1)
        elif self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
            self._skip(self.text.index("\n", self.at) + 1 - self.at)
        elif self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self._skip((len(self.text) if end < 0 else end) - self.at)
        else:
            return False
        return True

    def _array(self) -> Words:
        opened = self.line
        self._skip(1)
        items: list[str] = []
        while self.at < len(self.text):
            if self.text[self.at] == ")":
                self._skip(1)
                return tuple(items)
            if self.text[self.at] in "\n;|":
                self._skip(1)
            elif not self._blank():
                items.append(self._word(inside_array=True))
        raise self._open("(", opened)

    def _word(self, *, inside_array: bool = False) -> str:
        """Characters up to the next space or separator, quotes taken off."""
        parts: list[str] = []
        ends = " \t\r\n;|" + (")" if inside_array else "")
        while self.at < len(self.text) and self.text[self.at] not in ends:
            mark = self.text[self.at]
            if mark == "&" and not (parts and parts[-1].endswith(">")):
                if parts:
                    break
                parts.append(mark)
                self._skip(1)
            elif self.text.startswith("\\\n", self.at):
                self._skip(2)
            elif mark == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2])
                self._skip(2)
            elif mark in "\"'":
                parts.append(self._quoted(mark))
            elif mark == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
                parts.append(self._bracketed())
            elif mark == "(" and ASSIGNMENT.fullmatch("".join(parts)):
                break
            else:
                parts.append(mark)
                self._skip(1)
        return "".join(parts)

    def _quoted(self, quote: str) -> str:
        opened = self.line
        self._skip(1)
        parts: list[str] = []
        while self.at < len(self.text):
            mark = self.text[self.at]
            if mark == quote:
                self._skip(1)
                return "".join(parts)
            if quote == '"' and mark == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                follows = self.text[self.at + 1]
                parts.append("" if follows == "\n" else follows)
                self._skip(2)
            elif quote == '"' and mark == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
                parts.append(self._bracketed())
            else:
                parts.append(mark)
                self._skip(1)
        raise self._open(quote, opened)

    def _bracketed(self) -> str:
        """`$(...)`, `$((...))` or `${...}` as it stands, without its quotes."""
        opened, opening = self.line, self.text[self.at + 1]
        closing = {"(": ")", "{": "}"}[opening]
        depth, start = 0, self.at
        while self.at < len(self.text):
            mark = self.text[self.at]
            depth += (mark == opening) - (mark == closing)
            self._skip(1)
            if mark == closing and not depth:
                return self.text[start : self.at].replace('"', "").replace("'", "")
        raise self._open(opening, opened)

    def _open(self, mark: str, line: int) -> InputError:
        return InputError(where=f"{self.where}, line {line}", found=f"{mark} left open", expected="its other end")
