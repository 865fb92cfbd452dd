"""Whether an application takes longer on one file system than on another: interleaved replays, judged in pairs."""
