"""Escape text in CSV files so that a spreadsheet shows it and never evaluates it; recorded paths may hold anything."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_FORMULA = r"^'*[=+\-@\t\r]"
_NUMBER = r"^[+\-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+\-]?[0-9]+)?$"


def as_plain_text(column: pa.Array) -> pa.Array:
    """The column with one apostrophe before each value that a spreadsheet would evaluate: `=1+1` becomes `'=1+1`.

    A spreadsheet evaluates a value whose first character, after any apostrophes, is `=`, `+`, `-`, `@`, a tab or a
    carriage return, unless it is a number. A reader gets the value back by removing one apostrophe from text that
    matches `^'+[=+@\\t\\r-]`. Other columns and values are returned unchanged.
    """
    if not pa.types.is_string(column.type):
        return column
    formula = pc.and_not(pc.match_substring_regex(column, _FORMULA), pc.match_substring_regex(column, _NUMBER))
    if not pc.any(formula, min_count=0).as_py():
        return column
    return pc.if_else(formula, pc.binary_join_element_wise("'", column, ""), column)
