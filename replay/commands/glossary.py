"""`dxt-replay glossary`: the words of the tables and options, explained."""

from __future__ import annotations

import click


@click.command()
@click.argument("word", required=False)
def command(word: str | None) -> None:
    """Explain the words of the tables and options: all of them, or those in which WORD occurs."""
    from replay.show.glossary import explained
    from replay.show.section import Section
    from replay.show.terminal import print_sections
    from traces.errors import UsageError

    found = explained(word or "")
    if not found:
        raise UsageError(f"the glossary does not have {word!r}: dxt-replay glossary lists its words")
    print_sections([Section(title="Glossary", rows=found, prose=True)])
