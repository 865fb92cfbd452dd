"""HDF5 datasets and chunks, from Darshan's records or from the files themselves."""
