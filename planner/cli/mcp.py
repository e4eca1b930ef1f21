"""`cellplan mcp`: estimate, plan, explain and export as tools of the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from planner.cli.arguments import add_options, chosen
from planner.shared.options.mcp import McpOptions
from profiles.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    """`mcp`."""
    add_options(parser, McpOptions)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    options = chosen(arguments, McpOptions)
    try:
        from planner.cli.mcp_server import make_server

        server = make_server(options)
    except ImportError as error:
        raise InputError(where="mcp", found=str(error), expected="pip install 'cellplan[mcp]'") from None
    server.run("stdio")
