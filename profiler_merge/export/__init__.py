"""A capture as files of other tools: a reader of the contract and a writer of one format each."""
