"""The contract between all parts of dxt-replay: schemas, the `Capture` type, its Parquet store, errors and units.

Names are imported from the modules that define them, such as `traces.schema` and `traces.store.reader`.
"""
