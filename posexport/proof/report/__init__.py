"""What was checked and how it went: records, verdict, table, sample."""
