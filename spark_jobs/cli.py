"""The command line, used by people and DAGs alike. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import pyarrow as pa
import typer
from deltalake.exceptions import DeltaError
from rich.markup import escape

from spark_jobs.commands import look, proof, upkeep, work
from spark_jobs.console import ERR, PROGRESS_FILE, WITH_PARENT, say
from spark_jobs.errors import RepriseError
from spark_jobs.with_parent import die_with_parent

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find row patterns in partitioned event logs on Spark, survive being killed, and prove it.\n\n"
    "A first look: [bold]reprise drill examples/card_probing.yaml[/bold]",
)

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Work": (work.generate, work.ingest, work.detect, work.recover, work.run),
    "Proof": (proof.drill, proof.campaign, proof.reference, proof.verify, proof.report, proof.docs),
    "A closer look": (look.show, look.explain, look.bench),
    "Upkeep": (upkeep.trim, upkeep.upgrade, upkeep.cut_over),
}
HIDDEN: tuple[Callable[..., None], ...] = (proof.arm, proof.deliver, look.warm_up)

for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for command in HIDDEN:
    app.command(hidden=True)(command)


def main() -> None:
    """Entry point: errors a user can act on are sentences, not stack traces."""
    signal.signal(signal.SIGTERM, _end)
    if os.environ.get(WITH_PARENT):
        die_with_parent()
    try:
        app()
    except RepriseError as error:
        ERR.print(f"[bold red]error:[/bold red] {escape(str(error))}")
        if os.environ.get(PROGRESS_FILE):
            say(f"error: {error}")
        raise SystemExit(error.exit_code) from None
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGINT:
            ERR.print("interrupted. What was committed before stands; the same command goes on after it.")
        raise
    except (OSError, DeltaError, pa.ArrowException) as error:
        ERR.print(f"[bold red]error:[/bold red] {type(error).__name__}: {escape(str(error))}")
        ERR.print(f"A file or a table could not be read or written. What was committed before stands. {_next_step(error)}")
        raise SystemExit(1) from None


def _next_step(error: Exception) -> str:
    """What whoever reads the message can do about it."""
    if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS:
        return "Give this user the right to read and write there, or name another folder; then start the same command again."
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return "Make room on that disk, then start the same command again."
    return "Start the same command again; if that does not help, 'reprise verify' says what of the output is whole."


def _end(number: int, _: FrameType | None) -> NoReturn:
    """Who is told to end ends what it has started too: Spark, the processes of a drill."""
    raise SystemExit(128 + number)
