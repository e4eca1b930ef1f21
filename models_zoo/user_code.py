"""What tells a reference that the user wrote on the command line from one that stands in a file.

A file is data: a model that it names is a zoo name or a path to a config, and nothing else is ever looked up by it.
Code runs only where the user named it, on this very command line or as an argument of a Python function: what may be
imported is a `UserFactory`, and only a `UserCode`, which the options of a command make, gives one.
"""

from __future__ import annotations

import re
from dataclasses import field

from profiles.records import dataclass

USER_CODE_LIMIT_S = 300.0

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def names_code(reference: str) -> bool:
    """Return whether `reference` has the form of `package.module:factory`."""
    return bool(_FACTORY.fullmatch(reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFactory:
    """`package.module:factory`, named by the user, to be imported and called; it may take `limit_s` seconds."""

    reference: str
    limit_s: float = field(default=USER_CODE_LIMIT_S, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The references that the user named, and the seconds for which their code may run at a time. `option` is by which
    the command lets code of a file be named, empty where it takes none; `of_file` are those named so."""

    named: tuple[str, ...] = ()
    limit_s: float = USER_CODE_LIMIT_S
    option: str = ""
    of_file: tuple[str, ...] = ()

    def factory(self, reference: str) -> UserFactory | None:
        """Return what `reference`, wherever it stands, may import; None where the user did not name it."""
        return UserFactory(reference=reference, limit_s=self.limit_s) if reference in self.named else None


NO_CODE = UserCode()
"""What a file may import."""
