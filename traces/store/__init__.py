"""A capture as a directory of Parquet files: reading, writing, and the counts stored beside the rows."""
