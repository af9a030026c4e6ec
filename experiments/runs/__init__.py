"""What a run leaves and shows: its directory, checkpoints, journal, records, faults and progress."""
