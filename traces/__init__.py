"""The contract between all parts: schemas, the `Capture` type, its Parquet store, errors and units.

Names are imported from the modules that define them (`traces.ops`, `traces.store`, `traces.errors`, `traces.units`).
"""
