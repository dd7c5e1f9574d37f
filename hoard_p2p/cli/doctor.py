"""`hoard doctor`."""

import click


@click.command()
def doctor() -> None:
    """stub"""
