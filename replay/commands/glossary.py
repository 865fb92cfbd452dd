"""`dxt-replay glossary`: the words of the tables and options, explained."""

from __future__ import annotations

import click


@click.command()
@click.argument("word", required=False)
def command(word: str | None) -> None:
    """Explain the words of the tables and options: all of them, or those in which WORD occurs.

    With WORD, the columns of --csv and --json in whose names it occurs are explained too.
    """
    from dxt_replay.replay.show.glossary import explained
    from dxt_replay.replay.show.section import Section
    from dxt_replay.replay.show.terminal import print_sections
    from dxt_replay.traces.errors import UsageError

    found = explained(word or "")
    if not found:
        raise UsageError(f"the glossary does not have {word!r}: dxt-replay glossary lists its words")
    print_sections([Section(title="Glossary", rows=found, prose=True)])
