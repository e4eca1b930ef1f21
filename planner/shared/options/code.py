"""Which code of the user's a command may run: the one place where a reference of theirs becomes more than a text."""

from __future__ import annotations

from typing import Annotated

from models_zoo.user_code import USER_CODE_LIMIT_S, UserCode, names_code
from planner.shared.options.record import Option, Options
from planner.shared.options.values import PATIENCE
from profiles.records import dataclass

NAMING = ("model", "policy", "policies", "placer", "placers", "network", "networks", "code")
"""Options whose values may name code: what the user writes there is meant to run."""


@dataclass(frozen=True, kw_only=True)
class CodeOptions(Options):
    """How long code of the user's may run; the options of each command say which."""

    user_code_limit: Annotated[
        float,
        Option("give up on code of yours, a package.module:factory, after so long (default: 300)", "SECONDS", PATIENCE),
    ] = USER_CODE_LIMIT_S

    def check(self) -> None:
        """Raise InputError for a limit of code that nothing names."""
        if "user_code_limit" in self.changed() and not self.user_code.named:
            found = f"{self.user_code_limit:g} seconds, and no code of yours"
            raise self.wrong("user_code_limit", found=found, expected="package.module:factory as what runs")
        super().check()

    @property
    def user_code(self) -> UserCode:
        """What the user named, here and nowhere else, and may thus run."""
        values = (getattr(self, name, None) for name in NAMING)
        texts = ((value,) if isinstance(value, str) else value for value in values if isinstance(value, str | tuple))
        named = tuple(part for parts in texts for part in parts)
        return UserCode(
            named=tuple(filter(names_code, named)),
            limit_s=self.user_code_limit,
            option="--code" if hasattr(self, "code") else "",
            of_file=getattr(self, "code", ()),
        )


@dataclass(frozen=True, kw_only=True)
class CodeOfFileOptions(CodeOptions):
    """Code that a file names, and which the user names too."""

    code: Annotated[
        tuple[str, ...],
        Option(
            "run this code of yours where a plan file names it: of itself a file runs nothing",
            "package.module:factory",
            repeated=True,
        ),
    ] = ()

    def check(self) -> None:
        """Raise InputError for what names no code."""
        wrong = next((reference for reference in self.code if not names_code(reference)), None)
        if wrong is not None:
            raise self.wrong("code", found=repr(wrong), expected="package.module:factory")
        super().check()
