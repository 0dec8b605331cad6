"""Command ``mongoq dashboard``: serves the pages and the HTTP API."""

from __future__ import annotations

import logging
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from mongoq.cli.base.arguments import ADDRESS, DEFAULT_HOST, to_url
from mongoq.cli.base.connection import find_place, with_connection
from mongoq.cli.base.logs import configure_logging, log_options
from mongoq.cli.processes.pipeline import read_recipe
from mongoq.cli.processes.target import load
from mongoq.pipeline.pipeline import Pipeline

logger = logging.getLogger("mongoq.cli")

DEFAULT_PORT = 9472
NEEDED_EXTRA = "the dashboard needs the extra 'web': pip install 'mongoq-driver[web]'"


@click.command()
@with_connection
@click.option(
    "--http",
    type=ADDRESS,
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    help="Where to serve the pages. Another host than this machine needs --users.",
)
@click.option("--act", is_flag=True, help="Print a secret link, by which a browser may make changes.")
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with a line name:level:secret for each user; or set MONGOQ_WEB_USERS to such lines.",
)
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    metavar="TARGET",
    help="Pipeline to draw: module:object, or the file of a recipe; repeatable.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Origin that browsers see behind a proxy, such as https://queues.example.com; repeatable.",
)
@click.option("--root-path", metavar="PATH", help="Prefix of the addresses behind a proxy, such as /queues.")
@log_options
def dashboard(
    *,
    http: tuple[str, int],
    act: bool,
    users: Path | None,
    pipelines: tuple[str, ...],
    origins: tuple[str, ...],
    root_path: str | None,
    log_level: str,
    log_format: str,
    **given: str | None,
) -> None:
    """Show queues, items, dead letters and history in a browser, and repair them there.

    Without users it is for this machine alone, and read-only unless --act prints a link. SIGTERM or Ctrl-C ends the
    command.
    """
    try:
        from mongoq.web import Users, create_app
        from mongoq.web.access import LINK_PATH, USERS_VARIABLE, SecretLink
        from mongoq.web.server import serve
    except ImportError as error:
        raise click.ClickException(NEEDED_EXTRA) from error
    configure_logging(log_level, log_format)
    place: dict[str, Any] = find_place(**given)
    access: Any = None
    if users is not None:
        access = Users.from_file(users)
    elif USERS_VARIABLE in os.environ:
        access = Users.from_environment()
    if access is None:
        if not _is_local(http[0]):
            raise click.UsageError(f"{http[0]!r} is reached from other machines: name the users, by --users FILE")
        if origins or root_path:
            raise click.UsageError("a proxy passes on requests of other machines: name the users, by --users FILE")
        access = SecretLink() if act else "read"
    elif act:
        raise click.UsageError("--act is for a dashboard without users; each user has a level")
    drawn = []
    for target in pipelines:
        made = load(target) if ":" in target else read_recipe(Path(target))
        if not isinstance(made, Pipeline):
            raise click.UsageError(f"{target!r} is a {type(made).__name__}, and no Pipeline")
        drawn.append(made)
    app = create_app(
        place.pop("uri"),
        access=access,
        origins=origins,
        root_path=root_path or "",
        pipelines=drawn,
        **place,
    )

    def announce(port: int) -> None:
        address = f"{to_url(http[0], port)}{app.root_path}"
        logger.info("the dashboard is served at %s/", address)
        if isinstance(access, SecretLink):  # to stdout, because logs are kept and read by others
            click.echo(f"To make changes, open {address}{LINK_PATH}?token={access.token}")

    serve(app, *http, announce)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
