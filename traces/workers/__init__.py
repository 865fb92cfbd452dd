"""The work of one command on several processors or machines, through `concurrent.futures`."""
