"""Operations that no trace holds, rebuilt from Darshan's counters by one set of rules."""
