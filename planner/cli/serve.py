"""`cellplan serve`: a page to play with, at this machine's own address."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from planner.cli.arguments import add_options, chosen
from planner.cli.output import print_json
from planner.shared.options.serve import ServeOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`serve`."""
    add_options(parser, ServeOptions)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner.api.page_calls import require_jinja
    from planner.cli.serve_server import PageServer

    options = chosen(arguments, ServeOptions)
    require_jinja(where="serve")
    with PageServer(options) as server:
        if arguments.json:
            print_json({"url": server.url})
        else:
            print(f"open {server.url}\nstop with Ctrl-C")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
