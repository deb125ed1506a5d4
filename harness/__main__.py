"""`opgauge` and `python -m opgauge`: a reference worker imports this file again, and needs no command line."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The command line."""
    from . import cli

    cli.main()


if __name__ == "__main__":
    main()
